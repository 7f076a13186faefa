// Arguments of gated_mul.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/activation.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct GatedMulArgs {
  Activation activation;
  ConstMatrix gate;
  ConstMatrix up;
  Matrix y;
};

using GatedMulKernel = LaunchResult(const GatedMulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
