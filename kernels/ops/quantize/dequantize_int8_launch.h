// Arguments and path type of dequantize_int8: absl-free, for the paths themselves. The contract is in
// dequantize_int8.h.
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
