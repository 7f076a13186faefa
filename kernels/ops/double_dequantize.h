#pragma once
#include "absl/status/status.h"
#include "kernels/formats/double_quant.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DoubleDequantizeArgs {
  const std::int8_t* codes = nullptr;
  const float* factor = nullptr;
  float offset = 0;
  std::int64_t n = 0;
  float* absmax = nullptr;
};

// absmax = float(code) / factor + offset, two roundings.
//   codes   [n]            i8
//   factor  [ceil(n/256)]  f32
//   absmax  [n]            f32; overwritten
// Errors: InvalidArgument (null buffer, n < 0), Unimplemented (no kernel for device).
// Source: torchao nf4_tensor.py dequantize_scalers. Golden: tests/golden/kernels.
absl::Status DoubleDequantize(const DoubleDequantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
