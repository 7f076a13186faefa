// Arguments and path type of matmul_ternary: absl-free, for the paths themselves. The contract is in matmul_ternary.h.
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
