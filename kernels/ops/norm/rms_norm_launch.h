// Arguments and path type of rms_norm: absl-free, for the paths themselves. The contract is in rms_norm.h.
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
