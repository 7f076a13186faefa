// Arguments of double_quantize.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/double_quant.h"
#include "kernels/launch_result.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DoubleQuantizeArgs {
  const float* absmax = nullptr;
  std::int64_t n = 0;
  std::int8_t* codes = nullptr;
  float* factor = nullptr;
  float* offset = nullptr;
  std::int64_t block = kDoubleQuantBlock;
};

using DoubleQuantizeKernel = LaunchResult(const DoubleQuantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
