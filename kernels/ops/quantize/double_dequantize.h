#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/double_dequantize_launch.h"

namespace nibble::kernels {

// absmax = float(code) / factor + offset, two roundings.
//   codes   [n]              i8
//   factor  [ceil(n/block)]  f32
//   absmax  [n]              f32; overwritten
// Same bits on every path.
// Errors: InvalidArgument (null buffer, n < 0, block), Unimplemented (no kernel for device).
// Source: torchao nf4_tensor.py dequantize_scalers. Golden: tests/golden/kernels.
absl::Status DoubleDequantize(const DoubleDequantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
