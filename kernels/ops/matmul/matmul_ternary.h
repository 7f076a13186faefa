#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_ternary_launch.h"

namespace nibble::kernels {

// y = x * w^T over integer activations and ternary codes, exact int32 accumulation, then the epilogue of matmul_int8.h:
//   without outliers  rn_y(((float(acc) * s_row) * s_col) + bias)
//   with              rn_y((((float(acc) * s_row) * s_col) + o * s_col) + bias), where o is as in matmul_int8.h
// Each operation of the epilogue is rounded separately; only the chain of o uses fmaf.
//   x     [M, K]   formats/int8.h QuantizedRows: codes of 4 or 8 bits, or wide_codes of 16
//   w     [N, K]   formats/ternary.h, tiles
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten
// Requires K <= kTernaryMaxCols (kTernaryMaxColsWide with wide codes). Same bits on every path, batch and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device; wide codes on CUDA), Internal (launch).
// Source: BitNet b1.58 2B4T, arXiv:2504.12285; docs/numerics.md 3. Golden: tests/golden/kernels (numpy
// int64 product and f32 epilogue).
absl::Status MatmulTernary(const MatmulTernaryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
