// Arguments of matmul_bf16.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulBf16Args {
  ConstMatrix x;
  ConstMatrix w;
  Matrix y;
};

using MatmulBf16Kernel = LaunchResult(const MatmulBf16Args& args, const Stream& stream);

}  // namespace nibble::kernels
