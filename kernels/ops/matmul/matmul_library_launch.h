// Arguments of matmul_library.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulLibraryArgs {
  ConstMatrix x;
  ConstMatrix w;
  const float* bias = nullptr;
  bool accumulate = false;
  Matrix y;
};

using MatmulLibraryKernel = LaunchResult(const MatmulLibraryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
