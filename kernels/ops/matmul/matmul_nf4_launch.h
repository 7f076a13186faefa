// Arguments of matmul_nf4.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/nf4.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulNf4Args {
  ConstMatrix x;
  Nf4Weight w;
  const float* bias = nullptr;
  Matrix y;
};

using MatmulNf4Kernel = LaunchResult(const MatmulNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
