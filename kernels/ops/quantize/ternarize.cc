#include "kernels/ops/quantize/ternarize.h"

#include "kernels/check.h"
#include "kernels/ops/quantize/ternarize_table.h"

namespace nibble::kernels {

absl::Status Ternarize(const TernarizeArgs& args, const Stream& stream) {
  constexpr const char* kOp = "ternarise";  // as in metrics and events
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.w.rows >= 0 && args.w.cols >= 1, kOp, "w.rows >= 0 and w.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "w", args.w, args.w.rows, args.w.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.w.rows == 0 || args.scale != nullptr, kOp, "scale not null"));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.w.rows == 0 || args.rows != nullptr || args.tiles != nullptr, kOp, "rows or tiles not null"));
  if (args.w.rows == 0) return absl::OkStatus();
  return Launch(kTernarizeTable, args, stream);
}

}  // namespace nibble::kernels
