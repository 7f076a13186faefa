#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/dequantize_int8_launch.h"

namespace nibble::kernels {

// out = rn_out(float(codes) * scale of the row).
//   codes  [N, K]   i8
//   scale  [N]      f32
//   out    [N, K]   f32 | bf16; overwritten
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 1. Test: against the formula in f32.
absl::Status DequantizeInt8(const DequantizeInt8Args& args, const Stream& stream);

}  // namespace nibble::kernels
