#include "kernels/ops/loss/log_softmax_gather.h"

#include "kernels/check.h"
#include "kernels/ops/loss/log_softmax_gather_table.h"

namespace nibble::kernels {

absl::Status LogSoftmaxGather(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  constexpr const char* kOp = "log_softmax_gather";
  const std::int64_t rows = args.logits.rows;
  const std::int64_t vocabulary = args.logits.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "logits", args.logits, rows, vocabulary, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(vocabulary > 0 && vocabulary <= INT32_MAX, kOp, "1 to 2^31 - 1 logits per row"));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat((args.target == nullptr) == (args.logprob == nullptr), kOp, "both target and logprob, or neither"));
  if (args.top_n < 0 || args.top_n > vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(kOp, ": top_n is ", args.top_n, ", wanted 0 to ", vocabulary));
  }
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.top_n == 0 || (args.top_id != nullptr && args.top_logprob != nullptr), kOp,
                                     "top_id and top_logprob when top_n > 0"));
  if (args.target != nullptr && stream.device == DeviceKind::kCpu) {
    for (std::int64_t t = 0; t < rows; ++t) {
      if (args.target[t] < -1 || args.target[t] >= vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": target[", t, "] is ", args.target[t], ", wanted -1 to ", vocabulary - 1));
      }
    }
  }
  return Launch(kLogSoftmaxGatherTable, args, stream);
}

}  // namespace nibble::kernels
