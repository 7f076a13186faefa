#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/gated_mul_backward_launch.h"

namespace nibble::kernels {

// Gradients of gated_mul.
//   kSilu, with s = 1 / (1 + exp(-gate)):
//     grad_up = (grad_y * gate) * s
//     grad_gate = ((grad_y * up) * s) * (1 + gate * (1 - s))
//   kRelu2, with r = max(gate, 0):
//     grad_up = grad_y * (r * r)
//     grad_gate = (grad_y * up) * (r + r)
//   gate, up, grad_y    [M, F]  f32 | bf16
//   grad_gate, grad_up  [M, F]  f32 | bf16; overwritten; may be gate and up
// Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: derivative of gated_mul. Golden: tests/golden/kernels (autograd of the formula).
absl::Status GatedMulBackward(const GatedMulBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
