// Arguments of rms_norm_backward.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct RmsNormBackwardArgs {
  ConstMatrix x;
  ConstMatrix grad_y;
  const float* weight = nullptr;
  const float* rstd = nullptr;
  Matrix grad_x;
  float* grad_weight = nullptr;
};

using RmsNormBackwardKernel = LaunchResult(const RmsNormBackwardArgs&, const Stream&);

}  // namespace nibble::kernels
