#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/quantize_int8_backward_launch.h"

namespace nibble::kernels {

// Gradient of code * scale with respect to x, straight through the rounding (kernels/ste.h). A scale from the row's own
// absmax never saturates, so every mask is 1 and grad_x is g = grad_y, except for the path through the scale: with
// scale_grad, an ste other than kIdentity and absmax >= min_absmax, the first element of largest magnitude also gets
//   sign(x) * (t / max_code), t = f32 of the f64 sum of g * (code - x * (1 / s)), over 16 virtual lanes and a fixed
//   tree in each row. With how.per_tensor, the rows' sums are added in the same way, and only the first largest element
//   of all rows gets this term.
//   x, grad_y, grad_x  [M, K]   f32 | bf16; grad_x overwritten; may be grad_y
//   q, how                      codes and scale that quantize_int8 wrote for this x without outliers; its options
// Same bits on every path and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 6. Golden: tests/golden/kernels (torch autograd of the formula).
absl::Status QuantizeInt8Backward(const QuantizeInt8BackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
