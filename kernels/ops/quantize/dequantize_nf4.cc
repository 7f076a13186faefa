#include "kernels/ops/quantize/dequantize_nf4.h"

#include "kernels/check.h"
#include "kernels/ops/quantize/dequantize_nf4_table.h"

namespace nibble::kernels {

absl::Status DequantizeNf4(const DequantizeNf4Args& args, const Stream& stream) {
  constexpr const char* kOp = "dequantize_nf4";
  const Nf4Weight& w = args.w;
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.rows >= 0 && w.cols >= 0, kOp, "w.rows and w.cols >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "out", args.out, w.rows, w.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckNf4Block(kOp, "w.block", w.block));
  if (w.rows == 0 || w.cols == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(w.codes != nullptr && w.absmax != nullptr, kOp, "codes and absmax of w, got null"));
  return Launch(kDequantizeNf4Table, args, stream);
}

}  // namespace nibble::kernels
