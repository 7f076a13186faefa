#pragma once
#include "absl/status/status.h"
#include "kernels/formats/double_quant.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DoubleQuantizeArgs {
  const float* absmax = nullptr;
  std::int64_t n = 0;
  std::int8_t* codes = nullptr;
  float* factor = nullptr;
  float* offset = nullptr;
};

// int8 codes of n absmax values in blocks of 256 (formats/double_quant.h).
//   absmax  [n]            f32, finite
//   codes   [n]            i8; overwritten
//   factor  [ceil(n/256)]  f32; overwritten
//   offset  [1]            f32, the mean, summed in f64 in order; overwritten (0 when n is 0)
// Errors: InvalidArgument (null buffer, n < 0), Unimplemented (no kernel for device).
// Source: torchao nf4_tensor.py double_quantize_scalers. Golden: tests/golden/kernels (torchao's formula in f32).
absl::Status DoubleQuantize(const DoubleQuantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
