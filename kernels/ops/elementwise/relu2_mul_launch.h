// Arguments and path type of relu2_mul.h, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct Relu2MulArgs {
  ConstMatrix gate;
  ConstMatrix up;
  Matrix y;
};

using Relu2MulKernel = LaunchResult(const Relu2MulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
