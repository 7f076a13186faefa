#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/relu2_mul_launch.h"

namespace nibble::kernels {

// y = rn_y((r * r) * up), r = max(gate, 0), in f32.
//   gate, up  [M, F]   f32 | bf16
//   y         [M, F]   f32 | bf16; overwritten; may be gate or up
// NaN in gate counts as 0. Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: BitNet b1.58 2B4T, arXiv:2504.12285. Golden: tests/golden/kernels (transformers' BitNetMLP activation).
absl::Status Relu2Mul(const Relu2MulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
