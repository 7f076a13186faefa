// Arguments of matmul_int8.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulInt8Args {
  QuantizedRows x;
  PackedInt8Weight w;
  const float* bias = nullptr;
  Matrix y;
};

using MatmulInt8Kernel = LaunchResult(const MatmulInt8Args&, const Stream&);

}  // namespace nibble::kernels
