#include "server/data/evaluate.h"

#include <algorithm>
#include <span>

#include "kernels/ops/loss/log_softmax_gather.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/forward.h"

namespace nibble::data {
namespace {

// Maximum rows of one step. Bounds the memory of the logits (rows x vocabulary), and is large enough that weights are
// read for many rows at once. Short examples share a step; a longer one takes several steps.
constexpr std::size_t kStepRows = 256;

// Examples that share a KV cache, with their rows concatenated.
struct Batch {
  std::vector<std::int32_t> tokens, sequence, position, target, page_tables;  // target -1: not trained
  std::int64_t num_sequences = 0;
  std::int64_t pages_per_sequence = 0;
};

struct Chosen {
  std::vector<std::size_t> examples;
  std::int64_t rows = 0;
  std::int64_t longest = 0;  // tokens of the longest
  std::int64_t trained = 0;
};

// Chooses the examples of the next batch, from *next on, and moves *next past them. Chooses none after `max_trained`
// trained tokens.
Chosen NextBatch(const ExampleList& examples, std::int64_t max_trained, std::size_t* next) {
  Chosen chosen;
  while (*next < examples.size() && chosen.trained < max_trained) {
    const std::int64_t size = examples.num_tokens(*next);
    if (!chosen.examples.empty() && chosen.rows + size > static_cast<std::int64_t>(kStepRows)) break;
    const std::size_t at = (*next)++;
    const std::int64_t num_trained = examples.num_trained(at);
    if (num_trained == 0) continue;
    chosen.examples.push_back(at);
    chosen.rows += size;
    chosen.longest = std::max(chosen.longest, size);
    chosen.trained += num_trained;
  }
  return chosen;
}

Batch MakeBatch(std::span<const Example> examples) {
  Batch batch;
  for (const Example& example : examples) {
    const std::size_t size = example.tokens.size();
    for (std::size_t i = 0; i < size; ++i) {
      batch.tokens.push_back(example.tokens[i]);
      batch.sequence.push_back(static_cast<std::int32_t>(batch.num_sequences));
      batch.position.push_back(static_cast<std::int32_t>(i));
      batch.target.push_back(i + 1 < size && example.trained[i + 1] != 0 ? example.tokens[i + 1] : -1);
    }
    ++batch.num_sequences;
    batch.pages_per_sequence =
        std::max(batch.pages_per_sequence, model::KvPool::PagesFor(static_cast<std::int64_t>(size)));
  }
  for (std::int64_t p = 0; p < batch.num_sequences * batch.pages_per_sequence; ++p) {
    batch.page_tables.push_back(static_cast<std::int32_t>(p));
  }
  return batch;
}

// Runs rows [begin, begin + count) of the batch. Adds their losses to *sum, and appends their most likely tokens to
// *top unless null.
absl::Status AddRows(const model::ModelConfig& config, const model::DecoderWeights& weights, const Batch& batch,
                     std::size_t begin, std::size_t count, const kernels::KvCacheView& cache, model::Arena& arena,
                     const kernels::Stream& stream, const base::Cancelled& cancelled, double* sum,
                     std::vector<std::int32_t>* top) {
  std::vector<std::int32_t> logit_rows, targets;
  for (std::size_t i = 0; i < count; ++i) {
    if (batch.target[begin + i] < 0) continue;
    logit_rows.push_back(static_cast<std::int32_t>(i));
    targets.push_back(batch.target[begin + i]);
  }
  arena.Release({});
  NIBBLE_ASSIGN_OR_RETURN(const kernels::Matrix logits,
                          model::RunStep(config, weights, cache,
                                         {.tokens = std::span(batch.tokens).subspan(begin, count),
                                          .kv = {.num_rows = static_cast<std::int64_t>(count),
                                                 .sequence = batch.sequence.data() + begin,
                                                 .position = batch.position.data() + begin,
                                                 .page_tables = batch.page_tables.data(),
                                                 .num_sequences = batch.num_sequences,
                                                 .pages_per_sequence = batch.pages_per_sequence},
                                          .logit_rows = logit_rows,
                                          .cancelled = &cancelled},
                                         arena, stream));
  std::vector<float> logprobs(targets.size()), top_logprobs(targets.size());
  std::vector<std::int32_t> top_ids(targets.size());
  NIBBLE_RETURN_IF_ERROR(kernels::LogSoftmaxGather({.logits = logits,
                                                    .target = targets.data(),
                                                    .logprob = logprobs.data(),
                                                    .top_n = top == nullptr ? 0 : 1,
                                                    .top_id = top == nullptr ? nullptr : top_ids.data(),
                                                    .top_logprob = top == nullptr ? nullptr : top_logprobs.data()},
                                                   stream));
  for (const float logprob : logprobs) *sum -= logprob;
  if (top != nullptr) top->insert(top->end(), top_ids.begin(), top_ids.end());
  return absl::OkStatus();
}

}  // namespace

EvaluationSize SizeOfEvaluation(const ExampleList& examples) {
  EvaluationSize size;
  for (std::size_t next = 0; next < examples.size();) {
    const Chosen chosen = NextBatch(examples, std::numeric_limits<std::int64_t>::max(), &next);
    size.rows = std::max(size.rows, std::min(chosen.rows, static_cast<std::int64_t>(kStepRows)));
    size.pages = std::max(size.pages, std::ssize(chosen.examples) * model::KvPool::PagesFor(chosen.longest));
  }
  return size;
}

absl::StatusOr<Evaluation> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                    const ExampleList& examples, const EvaluateOptions& options,
                                    const kernels::Stream& stream, const std::function<bool(std::int64_t)>& progress) {
  Evaluation result;
  const base::Cancelled cancelled = [&] { return !progress(result.tokens); };
  double sum = 0;
  model::Arena arena;
  for (std::size_t next = 0; next < examples.size() && result.tokens < options.max_tokens;) {
    const Chosen chosen = NextBatch(examples, options.max_tokens - result.tokens, &next);
    if (chosen.examples.empty()) break;
    const auto rows = static_cast<std::size_t>(chosen.rows);
    std::vector<Example> batched;
    for (const std::size_t at : chosen.examples) {
      const std::int64_t size = examples.num_tokens(at);
      if (size > weights.rope_positions) {
        return absl::InvalidArgumentError(base::StrCat("an example of the evaluation set has ", size,
                                                       " tokens, the model takes ", weights.rope_positions));
      }
      batched.push_back(examples[at]);
    }
    const Batch batch = MakeBatch(batched);
    NIBBLE_ASSIGN_OR_RETURN(const auto pool, model::KvPool::Create(config, weights.kv_dtype,
                                                                   batch.num_sequences * batch.pages_per_sequence));
    for (std::size_t begin = 0; begin < rows; begin += kStepRows) {
      NIBBLE_RETURN_IF_ERROR(AddRows(config, weights, batch, begin, std::min(kStepRows, rows - begin), pool->view(),
                                     arena, stream, cancelled, &sum,
                                     options.top_tokens ? &result.top_tokens : nullptr));
    }
    result.tokens += chosen.trained;
  }
  if (result.tokens == 0) {
    return base::WithReason(absl::InvalidArgumentError("the evaluation data has no trained token"),
                            "NO_TRAINABLE_TOKENS");
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace nibble::data
