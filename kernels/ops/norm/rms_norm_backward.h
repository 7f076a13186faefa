#pragma once
#include "absl/status/status.h"
#include "kernels/ops/norm/rms_norm_backward_launch.h"

namespace nibble::kernels {

// Gradients of rms_norm: grad_x = rstd * (g*w - x * rstd^2 * mean(g*w*x)), g = grad_y, in f32, and
// grad_weight = chain of fmaf(g, x * rstd) over the rows in order, from 0.
//   x, grad_y  [M, K]   f32 | bf16
//   weight     [K]      f32
//   rstd       [M]      f32, as rms_norm wrote it
//   grad_x     [M, K]   f32 | bf16; overwritten; may be grad_y
//   grad_weight [K]     f32, or null; overwritten
// Same fixed order of summation as rms_norm.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: derivative of rms_norm. Golden: tests/golden/kernels (autograd of the formula).
absl::Status RmsNormBackward(const RmsNormBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
