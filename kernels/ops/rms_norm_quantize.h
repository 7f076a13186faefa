#pragma once
#include "absl/status/status.h"
#include "kernels/ops/rms_norm_quantize_launch.h"

namespace nibble::kernels {

// quantize_int8(rms_norm(x)) in one pass over a row that stays in cache: norm, outliers, absmax, codes, scale.
//   x       [M, K]   f32 | bf16
//   weight  [K]      f32
//   out     [M, K]   as in quantize_int8, like `how`
//   rstd    [M]      f32, or null; for the backward pass
// Bits equal to rms_norm into f32 followed by quantize_int8, on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 1. Golden: those of rms_norm and quantize_int8.
absl::Status RmsNormQuantize(const RmsNormQuantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
