// Arguments of matmul_ternary.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/ternary.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulTernaryArgs {
  QuantizedRows x;
  PackedTernaryWeight w;
  const float* bias = nullptr;
  Matrix y;
};

using MatmulTernaryKernel = LaunchResult(const MatmulTernaryArgs&, const Stream&);

}  // namespace nibble::kernels
