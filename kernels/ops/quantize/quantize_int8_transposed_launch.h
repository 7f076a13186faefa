// Arguments of quantize_int8_transposed.h and the function type of its kernels, free of absl so that nvcc can read
// them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct QuantizeInt8TransposedArgs {
  ConstMatrix x;
  float* scale = nullptr;
  std::int8_t* codes = nullptr;
  std::int64_t stride = 0;
  std::int8_t* tiles = nullptr;
  std::int32_t* row_sum = nullptr;
  QuantizeOptions how = {};
};

using QuantizeInt8TransposedKernel = LaunchResult(const QuantizeInt8TransposedArgs&, const Stream&);

}  // namespace nibble::kernels
