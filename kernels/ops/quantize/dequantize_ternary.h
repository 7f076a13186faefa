#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/dequantize_ternary_launch.h"

namespace nibble::kernels {

// out = rn_out(float(code) * scale of the row). Without a scale, out holds the codes, which are exact in every type.
// The backward pass needs this: it multiplies the gradient by the codes in float, and then by the scale.
//   w    [N, K]   formats/ternary.h, tiles; scale [N] f32, or null
//   out  [N, K]   f32 | bf16; i8 only without a scale; overwritten
// Requires K <= kTernaryMaxCols. Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 2 and 10. Golden: tests/golden/kernels (torch).
absl::Status DequantizeTernary(const DequantizeTernaryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
