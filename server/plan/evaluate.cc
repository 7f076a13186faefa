#include "server/plan/evaluate.h"

#include <algorithm>

#include "kernels/ops/log_softmax_gather.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/model/forward.h"

namespace nibble::plan {

namespace {

constexpr std::int64_t kChunk = 128;

// Adds one example's trained tokens. Row r of the logits predicts token r + 1.
absl::Status AddExample(const model::LoadedModel& model, const data::Example& example, const kernels::Stream& stream,
                        double* sum, Evaluation* out) {
  const auto visit = [&](std::int64_t first, const kernels::Matrix& logits) -> absl::Status {
    const auto n = static_cast<std::size_t>(logits.rows);
    std::vector<std::int32_t> targets(n, 0), top_ids(n);
    std::vector<float> values(n), top_values(n);
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t next = static_cast<std::size_t>(first) + r + 1;
      if (next < example.tokens.size()) targets[r] = example.tokens[next];
    }
    NIBBLE_RETURN_IF_ERROR(kernels::LogSoftmaxGather({.logits = kernels::MakeConstMatrix(logits.Row<float>(0), kernels::DType::kF32,
                                                                                        logits.rows, logits.cols),
                                                      .target = targets.data(),
                                                      .logprob = values.data(),
                                                      .top_n = 1,
                                                      .top_id = top_ids.data(),
                                                      .top_logprob = top_values.data()},
                                                     stream));
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t next = static_cast<std::size_t>(first) + r + 1;
      if (next >= example.tokens.size() || example.trained[next] == 0) continue;
      *sum -= values[r];
      ++out->tokens;
      out->top_tokens.push_back(top_ids[r]);
    }
    return absl::OkStatus();
  };
  return model::ForEachLogits(model.config(), model.weights(), example.tokens, kChunk, stream, visit);
}

}  // namespace

absl::StatusOr<Evaluation> Evaluate(const model::LoadedModel& model, const std::vector<data::Example>& examples,
                                    std::int64_t max_tokens, const kernels::Stream& stream,
                                    const std::function<bool(std::int64_t)>& progress) {
  Evaluation result;
  double sum = 0;
  for (const data::Example& example : examples) {
    if (result.tokens >= max_tokens) break;
    if (!progress(result.tokens)) return absl::CancelledError("cancelled while it was evaluated");
    if (example.num_trained() == 0) continue;
    NIBBLE_RETURN_IF_ERROR(AddExample(model, example, stream, &sum, &result));
  }
  if (result.tokens == 0) {
    return base::WithReason(absl::InvalidArgumentError("the evaluation data has no trained token"), "NO_TRAINABLE_TOKENS");
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace nibble::plan
