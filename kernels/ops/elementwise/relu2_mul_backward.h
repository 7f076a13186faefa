#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/relu2_mul_backward_launch.h"

namespace nibble::kernels {

// Gradients of relu2_mul, with r = max(gate, 0):
//   grad_up = grad_y * (r * r)
//   grad_gate = (grad_y * up) * (r + r)
//   gate, up, grad_y    [M, F]  f32 | bf16
//   grad_gate, grad_up  [M, F]  f32 | bf16; overwritten; may be gate and up
// Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: derivative of relu2_mul. Golden: tests/golden/kernels (torch autograd).
absl::Status Relu2MulBackward(const Relu2MulBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
