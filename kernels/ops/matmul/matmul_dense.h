#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_dense_launch.h"

namespace nibble::kernels {

// y = rn_y(x * w^T + bias) with one fused multiply-add chain per output, over k in order, from 0; a bias is added last.
// For the float layers of an artifact with guaranteed bits, and for adapters.
//   x     [M, K]   f32 | bf16
//   w     [N, K]   f32 | bf16 panels (formats/dense.h); bf16 is widened exactly
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten
//   accumulate     y (f32) = y + (x * w^T + bias): the sum is complete before it is added
// Same bits on every path, batch and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 9. Golden: tests/golden/kernels (numpy float64, within the bound of the chain).
absl::Status MatmulDense(const MatmulDenseArgs& args, const Stream& stream);

}  // namespace nibble::kernels
