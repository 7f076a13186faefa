#include "kernels/ops/matmul/matmul_ternary.h"

#include "kernels/formats/int8_check.h"
#include "kernels/formats/ternary_check.h"
#include "kernels/ops/matmul/matmul_ternary_table.h"

namespace nibble::kernels {

absl::Status MatmulTernary(const MatmulTernaryArgs& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_ternary";
  const PackedTernaryWeight& w = args.w;
  const bool wide = args.x.wide_codes != nullptr;
  NIBBLE_RETURN_IF_INVALID(CheckTernaryWeight(kOp, w, wide ? kTernaryMaxColsWide : kTernaryMaxCols));
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.rows == 0 || w.scale != nullptr, kOp, "w with a scale"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0, kOp, "x.rows >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizedRows(kOp, "x", args.x, args.x.rows, w.cols, wide ? 16 : 8));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, w.rows, {DType::kF32, DType::kBF16}));
  if (args.x.rows == 0 || w.rows == 0) return absl::OkStatus();
  return Launch(kMatmulTernaryTable, args, stream);
}

}  // namespace nibble::kernels
