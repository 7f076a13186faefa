#pragma once
#include "absl/status/status.h"
#include "kernels/ops/norm/rms_norm_launch.h"

namespace nibble::kernels {

// y = rn_y((x * rstd) * weight), rstd = 1 / sqrt(mean(x^2) + eps), all in f32.
//   x       [M, K]   f32 | bf16
//   weight  [K]      f32
//   y       [M, K]   f32 | bf16; overwritten; may be x
//   rstd    [M]      f32, or null; for the backward pass
// Requires K >= 1. The sum of squares runs over 16 virtual lanes by fused multiply-add, then a fixed tree; sqrt and
// division are IEEE. Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: RMSNorm, arXiv:1910.07467; docs/numerics.md 9. Golden: tests/golden/kernels (transformers LlamaRMSNorm).
absl::Status RmsNorm(const RmsNormArgs& args, const Stream& stream);

}  // namespace nibble::kernels
