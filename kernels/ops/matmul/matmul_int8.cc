#include "kernels/ops/matmul/matmul_int8.h"

#include "kernels/formats/int8_check.h"
#include "kernels/ops/matmul/matmul_int8_table.h"

namespace nibble::kernels {

absl::Status MatmulInt8(const MatmulInt8Args& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_int8";
  const PackedInt8Weight& w = args.w;
  if (w.rows < 0 || w.cols < 0 || w.cols > kInt8MaxCols || w.padded_k != Int8PaddedK(w.cols)) {
    return absl::InvalidArgumentError(absl::StrCat(kOp, ": w is [", w.rows, ", ", w.cols, "] padded to ", w.padded_k,
                                                   ", wanted rows >= 0 and 0 to ", kInt8MaxCols,
                                                   " columns, padded to the next multiple of 64"));
  }
  const bool has_tiles = w.cols == 0 || w.tiles != nullptr;
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.rows == 0 || (has_tiles && w.scale != nullptr && w.row_sum != nullptr), kOp,
                                     "w with tiles, scale and row_sum"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0, kOp, "x.rows >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizedRows(kOp, "x", args.x, args.x.rows, w.cols));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, w.rows, {DType::kF32, DType::kBF16}));
  return Launch(kMatmulInt8Table, args, stream);
}

}  // namespace nibble::kernels
