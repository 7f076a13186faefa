// Arguments and path type of relu2_mul_backward.h, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct Relu2MulBackwardArgs {
  ConstMatrix gate;
  ConstMatrix up;
  ConstMatrix grad_y;
  Matrix grad_gate;
  Matrix grad_up;
};

using Relu2MulBackwardKernel = LaunchResult(const Relu2MulBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
