#include "kernels/ops/norm/rms_norm_backward.h"

#include "kernels/check.h"
#include "kernels/ops/norm/rms_norm_backward_table.h"

namespace nibble::kernels {

absl::Status RmsNormBackward(const RmsNormBackwardArgs& args, const Stream& stream) {
  constexpr const char* kOp = "rms_norm_backward";
  const std::int64_t rows = args.x.rows;
  const std::int64_t cols = args.x.cols;
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows >= 0 && cols >= 1, kOp, "x.rows >= 0 and x.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, rows, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_y", args.grad_y, rows, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_x", args.grad_x, rows, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.weight != nullptr, kOp, "weight not null"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows == 0 || args.rstd != nullptr, kOp, "rstd from rms_norm, got null"));
  return Launch(kRmsNormBackwardTable, args, stream);
}

}  // namespace nibble::kernels
