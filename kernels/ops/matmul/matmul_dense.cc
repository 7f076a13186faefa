#include "kernels/ops/matmul/matmul_dense.h"

#include "kernels/check.h"
#include "kernels/ops/matmul/matmul_dense_table.h"

namespace nibble::kernels {

absl::Status MatmulDense(const MatmulDenseArgs& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_dense";
  const PackedDenseWeight& w = args.w;
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(w.rows >= 0 && w.cols >= 0 && args.x.rows >= 0, kOp, "w.rows, w.cols and x.rows >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.dtype == DType::kF32 || w.dtype == DType::kBF16, kOp, "w in f32 or bf16"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(w.rows == 0 || w.cols == 0 || w.panels != nullptr, kOp, "w with panels"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, w.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, w.rows, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(!args.accumulate || args.y.dtype == DType::kF32, kOp, "f32 y when accumulate is set"));
  return Launch(kMatmulDenseTable, args, stream);
}

}  // namespace nibble::kernels
