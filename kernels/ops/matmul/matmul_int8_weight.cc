#include "kernels/ops/matmul/matmul_int8_weight.h"

#include "kernels/check.h"
#include "kernels/ops/matmul/matmul_int8_weight_table.h"

namespace nibble::kernels {

absl::Status MatmulInt8Weight(const MatmulInt8WeightArgs& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_int8_weight";
  const PackedInt8Weight& w = args.w;
  if (w.rows < 0 || w.cols < 0 || w.padded_k != Int8PaddedK(w.cols)) {
    return absl::InvalidArgumentError(absl::StrCat(kOp, ": w is [", w.rows, ", ", w.cols, "] padded to ", w.padded_k,
                                                   ", wanted rows >= 0 and columns >= 0, padded to the next multiple "
                                                   "of 64"));
  }
  const bool has_tiles = w.cols == 0 || w.tiles != nullptr;
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.rows == 0 || (has_tiles && w.scale != nullptr), kOp, "w with tiles and scale"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0, kOp, "x.rows >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, w.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, w.rows, {DType::kF32, DType::kBF16}));
  return Launch(kMatmulInt8WeightTable, args, stream);
}

}  // namespace nibble::kernels
