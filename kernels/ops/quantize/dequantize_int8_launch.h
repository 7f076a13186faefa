// Arguments of dequantize_int8.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DequantizeInt8Args {
  ConstMatrix codes;
  const float* scale = nullptr;
  Matrix out;
};

using DequantizeInt8Kernel = LaunchResult(const DequantizeInt8Args&, const Stream&);

}  // namespace nibble::kernels
