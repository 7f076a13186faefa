#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/gated_mul_launch.h"

namespace nibble::kernels {

// y = rn_y(act(gate) * up) in f32:
//   kSilu   act(gate) = gate / (1 + exp(-gate)), exp by our polynomial (kernels/math.h)
//   kRelu2  act(gate) = r * r, r = max(gate, 0); NaN in gate counts as 0
//   gate, up  [M, F]   f32 | bf16
//   y         [M, F]   f32 | bf16; overwritten; may be gate or up
// Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: SwiGLU arXiv:2002.05202; BitNet b1.58 2B4T arXiv:2504.12285. Golden: tests/golden/kernels (torch float64;
// transformers' BitNetMLP activation).
absl::Status GatedMul(const GatedMulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
