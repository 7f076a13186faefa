#include "server/trainer/evaluate.h"

#include <algorithm>

#include "kernels/ops/log_softmax_gather.h"
#include "server/base/status_macros.h"
#include "server/model/forward.h"

namespace nibble::trainer {
namespace {

// Rows of one step: bounds tokens x vocabulary, and is enough that weights are read for many rows at once. An example longer
// than that is a step of its own.
constexpr std::size_t kStepRows = 256;

// Whole examples side by side, each a sequence of its own from position 0.
struct EvalStep {
  std::vector<std::int32_t> tokens, sequence, position, page_tables, logit_rows, targets;
  std::int64_t num_sequences = 0;
  std::int64_t pages_per_sequence = 0;
};

EvalStep MakeStep(std::span<const data::Example> examples) {
  EvalStep step;
  for (const data::Example& example : examples) {
    for (std::size_t i = 0; i < example.tokens.size(); ++i) {
      if (i + 1 < example.tokens.size() && example.trained[i + 1] != 0) {
        step.logit_rows.push_back(static_cast<std::int32_t>(step.tokens.size()));
        step.targets.push_back(example.tokens[i + 1]);
      }
      step.tokens.push_back(example.tokens[i]);
      step.sequence.push_back(static_cast<std::int32_t>(step.num_sequences));
      step.position.push_back(static_cast<std::int32_t>(i));
    }
    ++step.num_sequences;
    step.pages_per_sequence = std::max(step.pages_per_sequence,
                                       model::KvPool::PagesFor(static_cast<std::int64_t>(example.tokens.size())));
  }
  for (std::int64_t p = 0; p < step.num_sequences * step.pages_per_sequence; ++p) {
    step.page_tables.push_back(static_cast<std::int32_t>(p));
  }
  return step;
}

}  // namespace

absl::StatusOr<double> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                const std::vector<data::Example>& examples, const kernels::Stream& stream,
                                const std::function<bool()>& stopped) {
  double sum = 0;
  std::int64_t count = 0;
  model::Arena arena;
  for (std::size_t first = 0; first < examples.size();) {
    if (stopped()) return absl::CancelledError("stopped while evaluating");
    std::size_t last = first;
    std::size_t rows = 0;
    while (last < examples.size() && (last == first || rows + examples[last].tokens.size() <= kStepRows)) {
      rows += examples[last++].tokens.size();
    }
    const EvalStep step = MakeStep(std::span(examples).subspan(first, last - first));
    first = last;
    NIBBLE_ASSIGN_OR_RETURN(const auto pool,
                            model::KvPool::Create(config, weights.kv_dtype, step.num_sequences * step.pages_per_sequence));
    arena.Release({});
    NIBBLE_ASSIGN_OR_RETURN(const kernels::Matrix logits,
                            model::RunStep(config, weights, pool->view(),
                                           {.tokens = step.tokens,
                                            .kv = {.num_rows = static_cast<std::int64_t>(step.tokens.size()),
                                                   .sequence = step.sequence.data(),
                                                   .position = step.position.data(),
                                                   .page_tables = step.page_tables.data(),
                                                   .num_sequences = step.num_sequences,
                                                   .pages_per_sequence = step.pages_per_sequence},
                                            .logit_rows = step.logit_rows},
                                           arena, stream));
    std::vector<float> logprobs(step.targets.size());
    NIBBLE_RETURN_IF_ERROR(kernels::LogSoftmaxGather(
        {.logits = logits, .target = step.targets.data(), .logprob = logprobs.data()}, stream));
    for (const float logprob : logprobs) sum -= logprob;
    count += static_cast<std::int64_t>(logprobs.size());
  }
  if (count == 0) return absl::InvalidArgumentError("the evaluation set has no trained tokens");
  return sum / static_cast<double>(count);
}

}  // namespace nibble::trainer
