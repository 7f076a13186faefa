// Arguments of ternarize_backward.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/ste.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct TernarizeBackwardArgs {
  ConstMatrix w;
  float scale = 0;
  ConstMatrix grad_y;
  Ste ste = Ste::kIdentity;
  bool scale_grad = true;
  Matrix grad_w;
};

using TernarizeBackwardKernel = LaunchResult(const TernarizeBackwardArgs&, const Stream&);

}  // namespace nibble::kernels
