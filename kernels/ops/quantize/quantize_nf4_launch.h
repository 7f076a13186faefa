// Arguments of quantize_nf4.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/nf4.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct QuantizeNf4Args {
  ConstMatrix x;
  std::uint8_t* codes = nullptr;
  float* absmax = nullptr;
  std::int64_t block = kNf4Block;
};

using QuantizeNf4Kernel = LaunchResult(const QuantizeNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
