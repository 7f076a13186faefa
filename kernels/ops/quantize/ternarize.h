#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/ternarize_launch.h"

namespace nibble::kernels {

// Codes and scale of a whole tensor: s = max(f32(mean|w|), 1e-5), code = clamp(rne(w * (1 / s)), -1, 1).
//   w      [N, K]   f32 | bf16; finite (a NaN makes s NaN, an infinity makes s infinite; the codes then differ by path)
//   scale  [N]      f32, s in every element
//   rows   [N, ceil(K / 4)]            u8, or null
//   tiles  [PackedTernaryBytes(N, K)]  u8, or null (formats/ternary.h); all overwritten, padding included
// Requires K >= 1, and rows or tiles (or both) not null. |w| is summed in f64: within a row over 16 virtual lanes
// (lane l takes l, l + 16, ...) and a fixed tree, then the rows' sums in the same way. Same bits on every path and
// thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device; on CUDA 2^31 rows or more),
// Internal (launch; on CUDA tiles that are not aligned to 4 bytes).
// Source: microsoft/BitNet training tips fig. 3; docs/numerics.md 2. Golden: tests/golden/kernels (torch, torchao).
absl::Status Ternarize(const TernarizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
