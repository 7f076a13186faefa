// Arguments of matmul_dense.h and the function type of its kernels, free of absl so that nvcc can read them.
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
