#include "kernels/ops/norm/rms_norm_quantize.h"

#include "kernels/formats/int8_check.h"
#include "kernels/ops/norm/rms_norm_quantize_table.h"

namespace nibble::kernels {

absl::Status RmsNormQuantize(const RmsNormQuantizeArgs& args, const Stream& stream) {
  constexpr const char* kOp = "rms_norm_quantize";
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0 && args.x.cols >= 1, kOp, "x.rows >= 0 and x.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.weight != nullptr, kOp, "weight not null"));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizeOptions(kOp, args.how, args.max_outliers));
  NIBBLE_RETURN_IF_INVALID(CheckThat(!args.how.stochastic.enabled, kOp, "rounding to nearest"));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizedRows(kOp, "out", args.out, args.x.rows, args.x.cols, args.how.bits));
  NIBBLE_RETURN_IF_INVALID(CheckMaxOutliers(kOp, args.out, args.max_outliers));
  return Launch(kRmsNormQuantizeTable, args, stream);
}

}  // namespace nibble::kernels
