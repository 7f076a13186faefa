#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/quantize_int8_backward_launch.h"

namespace nibble::kernels {

// Gradient of code * scale with respect to x, straight through the rounding (kernels/ste.h). Codes never saturate,
// because the scale comes from the absmax. So every mask is 1, and grad_x is g = grad_y. If scale_grad is set, ste is
// not kIdentity and absmax >= min_absmax, the first element of largest magnitude in each row also gets the gradient
// through the scale:
//   sign(x) * (t / max_code), where t is the f64 sum of g * (code - x * (1 / s)) over the row, rounded to f32
// The sum has 16 virtual lanes and a fixed tree. With how.per_tensor, t is the sum of all rows' sums, added in the same
// way, and only the first element of largest magnitude in all rows gets the term.
//   x, grad_y, grad_x  [M, K]   f32 | bf16; grad_x overwritten; may be grad_y
//   q                  [M, K]   codes and scale that quantize_int8 wrote for this x without outliers
//   how                         the options of that quantize_int8 call
// Same bits on every path and thread count.
// Errors: InvalidArgument (shape, dtype, options), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 6. Golden: tests/golden/kernels (torch autograd of the formula).
absl::Status QuantizeInt8Backward(const QuantizeInt8BackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
