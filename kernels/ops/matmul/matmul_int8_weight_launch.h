// Arguments of matmul_int8_weight.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulInt8WeightArgs {
  ConstMatrix x;
  PackedInt8Weight w;
  const float* bias = nullptr;
  Matrix y;
};

using MatmulInt8WeightKernel = LaunchResult(const MatmulInt8WeightArgs&, const Stream&);

}  // namespace nibble::kernels
