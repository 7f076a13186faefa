#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_int8_weight_launch.h"

namespace nibble::kernels {

// y = rn_y((x * codes(w)^T) * s_col + bias), the product of float rows and an int8 weight ("weight-only"). One fused
// multiply-add chain per output, over k in order, from 0, whose factors are x_k and float(w[n, k]), both exact; the
// scale of the output follows, then the bias. Codes are widened in registers: there is no float copy of w.
//   x     [M, K]   f32 | bf16
//   w     [N, K]   formats/int8.h PackedInt8Weight; row_sum is not read and may be null
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten; must not alias x
// Same bits on every path, batch and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), ResourceExhausted (scratch: a copy of
// 24 rows of x in f32 per thread, 96 with AVX-512), Internal (launch).
// Source: docs/numerics.md 9; torchao 0.18.0 prototype/quantized_training/int8.py. Golden: tests/golden/kernels
// (torchao in float64, within the bound of the chain).
absl::Status MatmulInt8Weight(const MatmulInt8WeightArgs& args, const Stream& stream);

}  // namespace nibble::kernels
