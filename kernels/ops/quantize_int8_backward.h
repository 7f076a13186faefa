#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize_int8_backward_launch.h"

namespace nibble::kernels {

// Gradient of code * scale to x, straight through the rounding (kernels/ste.h). A scale of the row's own absmax never
// saturates, so every mask is 1 and grad_x = g but for the path through the scale: with scale_grad, ste other than
// kIdentity and absmax at least min_absmax, the first element of largest magnitude gets
//   + sign(x) * (t / max_code), t = f32 of the f64 sum of g * (code - x * (1 / s)): within a row over 16 virtual lanes
//   and a fixed tree; with how.per_tensor of all rows' sums in the same way, to the one element
//   x, grad_y, grad_x  [M, K]   f32 | bf16; grad_x overwritten; may be grad_y
//   q, how                      codes and scale as quantize_int8 wrote them for this x, without outliers; its options
// Same bits on every path and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 6. Golden: tests/golden/kernels (torch autograd of the formula).
absl::Status QuantizeInt8Backward(const QuantizeInt8BackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
