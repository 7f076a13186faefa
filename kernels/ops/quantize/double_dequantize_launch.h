// Arguments of double_dequantize.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/double_quant.h"
#include "kernels/launch_result.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DoubleDequantizeArgs {
  const std::int8_t* codes = nullptr;
  const float* factor = nullptr;
  float offset = 0;
  std::int64_t n = 0;
  float* absmax = nullptr;
  std::int64_t block = kDoubleQuantBlock;
};

using DoubleDequantizeKernel = LaunchResult(const DoubleDequantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
