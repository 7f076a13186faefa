#include "kernels/ops/norm/rms_norm.h"

#include "kernels/check.h"
#include "kernels/ops/norm/rms_norm_table.h"

namespace nibble::kernels {

absl::Status RmsNorm(const RmsNormArgs& args, const Stream& stream) {
  constexpr const char* kOp = "rms_norm";
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0 && args.x.cols >= 1, kOp, "x.rows >= 0 and x.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, args.x.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.weight != nullptr, kOp, "weight not null"));
  return Launch(kRmsNormTable, args, stream);
}

}  // namespace nibble::kernels
