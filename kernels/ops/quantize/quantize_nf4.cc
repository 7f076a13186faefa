#include "kernels/ops/quantize/quantize_nf4.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/quantize/quantize_nf4_table.h"

namespace nibble::kernels {

absl::Status QuantizeNf4(const QuantizeNf4Args& args, const Stream& stream) {
  constexpr const char* kOp = "quantize_nf4";
  const ConstMatrix& x = args.x;
  NIBBLE_RETURN_IF_INVALID(CheckThat(x.rows >= 0 && x.cols >= 0, kOp, "x.rows >= 0 and x.cols >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", x, x.rows, x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckNf4Block(kOp, "block", args.block));
  if (x.rows == 0 || x.cols == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.codes != nullptr && args.absmax != nullptr, kOp, "codes and absmax, got null"));
  NIBBLE_RETURN_IF_INVALID(Launch(kQuantizeNf4Table, args, stream));
  if (stream.device != DeviceKind::kCpu) return absl::OkStatus();
  const std::int64_t row_blocks = Nf4RowBlocks(x.cols, args.block);
  for (std::int64_t i = 0; i < x.rows * row_blocks; ++i) {
    if (!std::isfinite(args.absmax[i])) {
      return absl::InvalidArgumentError(absl::StrCat(kOp, ": x is not finite in row ", i / row_blocks,
                                                     ", columns from ", i % row_blocks * args.block,
                                                     ", wanted finite values"));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::kernels
