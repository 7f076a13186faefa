#include "kernels/ops/loss/cross_entropy.h"

#include "kernels/check.h"
#include "kernels/ops/loss/cross_entropy_table.h"

namespace nibble::kernels {

absl::Status CrossEntropy(const CrossEntropyArgs& args, const Stream& stream) {
  const Matrix& logits = args.logits;
  NIBBLE_RETURN_IF_INVALID(
      CheckMatrix("cross_entropy", "logits", logits, logits.rows, logits.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(logits.rows == 0 || (args.target != nullptr && args.loss != nullptr && logits.cols > 0),
                "cross_entropy", "target, loss and at least one column"));
  // A GPU's targets are in its own memory, which this code cannot read.
  for (std::int64_t t = 0; stream.device == DeviceKind::kCpu && t < logits.rows; ++t) {
    if (args.target[t] < 0 || args.target[t] >= logits.cols) {
      return absl::InvalidArgumentError(
          absl::StrCat("cross_entropy: target[", t, "] is ", args.target[t], ", wanted 0 to ", logits.cols - 1));
    }
  }
  return Launch(kCrossEntropyTable, args, stream);
}

}  // namespace nibble::kernels
