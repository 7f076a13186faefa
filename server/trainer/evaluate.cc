#include "server/trainer/evaluate.h"

#include "kernels/ops/log_softmax_gather.h"
#include "server/base/status_macros.h"
#include "server/model/forward.h"

namespace nibble::trainer {

absl::StatusOr<double> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                const std::vector<data::Example>& examples, const kernels::Stream& stream,
                                const std::function<bool()>& stopped) {
  constexpr std::int64_t kChunk = 256;  // bounds tokens x vocabulary
  double sum = 0;
  std::int64_t count = 0;
  for (const data::Example& example : examples) {
    if (stopped()) return absl::CancelledError("stopped while evaluating");
    const auto visit = [&](std::int64_t first, const kernels::Matrix& logits) -> absl::Status {
      const auto n = static_cast<std::size_t>(logits.rows);
      std::vector<std::int32_t> targets(n, -1);
      for (std::size_t r = 0; r < n; ++r) {
        const std::size_t next = static_cast<std::size_t>(first) + r + 1;
        if (next < example.tokens.size() && example.trained[next] != 0) targets[r] = example.tokens[next];
      }
      std::vector<float> logprobs(n);
      NIBBLE_RETURN_IF_ERROR(kernels::LogSoftmaxGather(
          {.logits = logits, .target = targets.data(), .logprob = logprobs.data()}, stream));
      for (std::size_t r = 0; r < n; ++r) {
        if (targets[r] < 0) continue;
        sum -= logprobs[r];
        ++count;
      }
      return absl::OkStatus();
    };
    NIBBLE_RETURN_IF_ERROR(model::ForEachLogits(config, weights, example.tokens, kChunk, stream, visit));
  }
  if (count == 0) return absl::InvalidArgumentError("the evaluation set has no trained tokens");
  return sum / static_cast<double>(count);
}

}  // namespace nibble::trainer
