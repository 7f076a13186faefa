#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_int8_launch.h"

namespace nibble::kernels {

// y = x * w^T over int8 codes, exact int32 accumulation, one epilogue:
//   without outliers  rn_y(((float(acc) * s_row) * s_col) + bias)
//   with              rn_y((((float(acc) * s_row) * s_col) + o * s_col) + bias),
//                     o = chain of fmaf(x_j, float(w[n, j]), o) over the row's outliers, j ascending, from 0
// bias is added only if it is not null.
//   x     [M, K]   formats/int8.h QuantizedRows
//   w     [N, K]   formats/int8.h PackedInt8Weight
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten
// Requires K <= kInt8MaxCols (|acc| < 2^31). Same bits on every path, batch and thread count.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: docs/numerics.md 1 and 3. Golden: tests/golden/kernels (numpy int64 product and f32 epilogue).
absl::Status MatmulInt8(const MatmulInt8Args& args, const Stream& stream);

}  // namespace nibble::kernels
