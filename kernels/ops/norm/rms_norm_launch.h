// Arguments of rms_norm.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct RmsNormArgs {
  ConstMatrix x;
  const float* weight = nullptr;
  float eps = 0;
  Matrix y;
  float* rstd = nullptr;
};

using RmsNormKernel = LaunchResult(const RmsNormArgs&, const Stream&);

}  // namespace nibble::kernels
