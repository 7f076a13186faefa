#include "kernels/ops/quantize/dequantize_ternary.h"

#include "kernels/formats/ternary_check.h"
#include "kernels/ops/quantize/dequantize_ternary_table.h"

namespace nibble::kernels {

absl::Status DequantizeTernary(const DequantizeTernaryArgs& args, const Stream& stream) {
  constexpr const char* kOp = "dequantize_ternary";
  const PackedTernaryWeight& w = args.w;
  NIBBLE_RETURN_IF_INVALID(CheckTernaryWeight(kOp, w, kTernaryMaxCols));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "out", args.out, w.rows, w.cols, {DType::kF32, DType::kBF16, DType::kI8}));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.out.dtype != DType::kI8 || w.scale == nullptr, kOp, "no scale when out is i8"));
  if (w.rows == 0 || w.cols == 0) return absl::OkStatus();
  return Launch(kDequantizeTernaryTable, args, stream);
}

}  // namespace nibble::kernels
