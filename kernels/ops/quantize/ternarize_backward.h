#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/ternarize_backward_launch.h"

namespace nibble::kernels {

// Gradient of code * scale with respect to w, straight through the rounding (kernels/ste.h). With g = grad_y,
// u = w * (1 / s) and m the mask:
//   grad_w = m * g; with scale_grad, if s is mean|w| (above 1e-5) and ste is not kIdentity, plus
//   sign(w) * f32(t / (N * K)), t = sum(g * (code - m * u)) in f64, in the order of ternarize
//   w, grad_y, grad_w  [N, K]   f32 | bf16; grad_w overwritten; may be grad_y
//   scale              s that ternarize wrote for this w
// Same bits on every path and thread count.
// Errors: InvalidArgument (shape, dtype, scale), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 6. Golden: tests/golden/kernels (torch autograd of the formula).
absl::Status TernarizeBackward(const TernarizeBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
