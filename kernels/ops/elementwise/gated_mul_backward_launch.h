// Arguments of gated_mul_backward.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/activation.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct GatedMulBackwardArgs {
  Activation activation;
  ConstMatrix gate;
  ConstMatrix up;
  ConstMatrix grad_y;
  Matrix grad_gate;
  Matrix grad_up;
};

using GatedMulBackwardKernel = LaunchResult(const GatedMulBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
