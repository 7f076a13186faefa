// Arguments and path type of matmul_dense: absl-free, for the paths themselves. The contract is in matmul_dense.h.
#pragma once
#include "kernels/formats/dense.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulDenseArgs {
  ConstMatrix x;
  PackedDenseWeight w;
  const float* bias = nullptr;
  Matrix y;
  bool accumulate = false;
};

using MatmulDenseKernel = LaunchResult(const MatmulDenseArgs&, const Stream&);

}  // namespace nibble::kernels
