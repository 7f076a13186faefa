// Arguments of quantize_int8_backward.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/ste.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct QuantizeInt8BackwardArgs {
  ConstMatrix x;
  QuantizedRows q;
  QuantizeOptions how = {};
  ConstMatrix grad_y;
  Ste ste = Ste::kIdentity;
  bool scale_grad = true;
  Matrix grad_x;
};

using QuantizeInt8BackwardKernel = LaunchResult(const QuantizeInt8BackwardArgs&, const Stream&);

}  // namespace nibble::kernels
