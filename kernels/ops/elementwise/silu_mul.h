#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/silu_mul_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// y = rn_y((gate / (1 + exp(-gate))) * up) in f32, exp by our polynomial (kernels/math.h).
//   gate, up  [M, F]   f32 | bf16
//   y         [M, F]   f32 | bf16; overwritten; may be gate or up
// Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: SwiGLU arXiv:2002.05202. Golden: tests/golden/kernels (torch float64).
absl::Status SiluMul(const SiluMulArgs& args, const Stream& stream);

}  // namespace nibble::kernels
