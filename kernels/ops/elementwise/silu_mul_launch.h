// Arguments and path type of silu_mul.h, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct SiluMulArgs {
  ConstMatrix gate;
  ConstMatrix up;
  Matrix y;
};

using SiluMulKernel = LaunchResult(const SiluMulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
