// Arguments of quantize_int8.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct QuantizeInt8Args {
  ConstMatrix x;
  QuantizedRows out;
  int max_outliers = 0;
  QuantizeOptions how = {};
  const char* counted_as = "quantize_int8";  // used on CUDA, where a path counts its own grids
};

using QuantizeInt8Kernel = LaunchResult(const QuantizeInt8Args&, const Stream&);

}  // namespace nibble::kernels
