#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_nf4_launch.h"

namespace nibble::kernels {

// y = rn_y(x * dequantize(w)^T + bias), with w rounded to x's dtype (the rule of dequantize_nf4). The CPU dequantizes
// at most a tile of w per thread at a time; CUDA dequantizes all of w to scratch if x has more than four rows.
// Accumulates in f32. BEST_EFFORT: paths agree within a bound, not in bits, and a path may treat denormal products and
// denormal bf16 weights as zero (vdpbf16ps does).
//   x     [M, K]   f32 | bf16
//   w     [N, K]   formats/nf4.h
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten; must not alias x
// Errors: InvalidArgument (shape, dtype, block), Unimplemented (no kernel for device), ResourceExhausted (scratch: a
// copy of x, a tile of w per thread; on CUDA also all of w), Internal (launch). Source: QLoRA arXiv:2305.14314 s.3.
// Golden: tests/golden/kernels (bitsandbytes weights, float64 product).
absl::Status MatmulNf4(const MatmulNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
