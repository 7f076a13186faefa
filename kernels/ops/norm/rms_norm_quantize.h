#pragma once
#include "absl/status/status.h"
#include "kernels/ops/norm/rms_norm_quantize_launch.h"

namespace nibble::kernels {

// quantize_int8(rms_norm(x)) row by row, so that each row stays in the cache between the two.
//   x             [M, K]   f32 | bf16
//   weight        [K]      f32
//   max_outliers, how      as in quantize_int8, but without stochastic rounding
//   out           [M, K]   as in quantize_int8; overwritten
//   rstd          [M]      f32, or null; for the backward pass
// Requires K >= 1. On every path, the bits equal those of rms_norm into f32 followed by quantize_int8.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 1. Golden: those of rms_norm and quantize_int8.
absl::Status RmsNormQuantize(const RmsNormQuantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
