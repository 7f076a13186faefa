#include "kernels/ops/matmul/matmul_nf4.h"

#include "kernels/check.h"
#include "kernels/ops/matmul/matmul_nf4_table.h"

namespace nibble::kernels {

absl::Status MatmulNf4(const MatmulNf4Args& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_nf4";
  const Nf4Weight& w = args.w;
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(w.rows >= 0 && w.cols >= 0 && args.x.rows >= 0, kOp, "w.rows, w.cols and x.rows >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, w.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, w.rows, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckNf4Block(kOp, "w.block", w.block));
  if (args.x.rows == 0 || w.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(w.cols == 0 || (w.codes != nullptr && w.absmax != nullptr), kOp, "codes and absmax of w, got null"));
  return Launch(kMatmulNf4Table, args, stream);
}

}  // namespace nibble::kernels
