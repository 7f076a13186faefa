#include "kernels/ops/quantize/ternarize_backward.h"

#include "kernels/check.h"
#include "kernels/formats/ternary.h"
#include "kernels/ops/quantize/ternarize_backward_table.h"

namespace nibble::kernels {

absl::Status TernarizeBackward(const TernarizeBackwardArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  constexpr const char* kOp = "ternarise_backward";
  const std::int64_t rows = args.w.rows;
  const std::int64_t cols = args.w.cols;
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows >= 0 && cols >= 1, kOp, "w.rows >= 0 and w.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "w", args.w, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_y", args.grad_y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_w", args.grad_w, rows, cols, kFloats));
  if (args.scale < kTernaryMinScale) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": scale is ", args.scale, ", wanted the scale from ternarize, at least ", kTernaryMinScale));
  }
  if (rows == 0) return absl::OkStatus();
  return Launch(kTernarizeBackwardTable, args, stream);
}

}  // namespace nibble::kernels
