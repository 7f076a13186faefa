#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/quantize_int8_transposed_launch.h"

namespace nibble::kernels {

// Quantizes the transpose of x to int8 codes, one scale per column of x, without writing the transpose: the same codes
// as quantize_int8 of x^T without outliers, if rounded to nearest. For the backward products of int8 training, which
// contract over rows.
//   x        [R, C]     f32 | bf16, finite
//   how                 as for quantize_int8, with 8 bits and native scaling. A stochastic draw belongs to the row and
//                       column of x
//   scale    [C]        f32
// and one of these two, null for the other:
//   codes    [C, stride]  as in formats/int8.h QuantizedRows [C, R]; overwritten, padding included
//   tiles, row_sum        as in formats/int8.h PackedInt8Weight [C, R]; overwritten, padding included
// Requires C >= 0, 1 <= R <= kInt8MaxCols. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, options, buffers), Unimplemented (no kernel for device), Internal (launch).
// Source: torchao's int8 mixed precision; docs/numerics.md 12. Golden: tests/golden/kernels/int8.txt (torchao).
absl::Status QuantizeInt8Transposed(const QuantizeInt8TransposedArgs& args, const Stream& stream);

}  // namespace nibble::kernels
