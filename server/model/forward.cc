#include "server/model/forward.h"

#include <algorithm>
#include <numeric>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {

absl::StatusOr<kernels::Matrix> RunStep(const ModelConfig& config, const DecoderWeights& weights,
                                        const kernels::KvCacheView& cache, const StepRows& rows, Arena& arena,
                                        const kernels::Stream& stream, kernels::Matrix* hidden) {
  ServingOps ops(config, weights, cache, rows, arena, stream);
  const kernels::Matrix logits = ops.Logits(RunDecoder(ops, config));
  NIBBLE_RETURN_IF_ERROR(ops.status());
  if (hidden != nullptr) *hidden = ops.hidden();
  return logits;
}

absl::Status ForEachLogits(const ModelConfig& config, const DecoderWeights& weights,
                           std::span<const std::int32_t> tokens, std::int64_t chunk, const kernels::Stream& stream,
                           const std::function<absl::Status(std::int64_t, const kernels::Matrix&)>& visit,
                           const base::Cancelled& cancelled) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  if (total > weights.rope_positions) {
    return base::FieldError(
        "tokens", base::StrCat("got ", total, " tokens, the model takes ", config.limit_text(weights.rope_positions)));
  }
  if (total == 0) return absl::OkStatus();
  const std::int64_t pages = KvPool::PagesFor(total);
  NIBBLE_ASSIGN_OR_RETURN(auto pool, KvPool::Create(config, weights.kv_dtype, pages));
  std::vector<std::int32_t> table;
  pool->Allocate(pages, &table);
  Arena arena;
  const std::vector<std::int32_t> sequence(static_cast<std::size_t>(std::min(chunk, total)), 0);
  std::vector<std::int32_t> position(sequence.size());
  std::vector<std::int32_t> logit_rows(sequence.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const auto count = static_cast<std::size_t>(std::min(chunk, total - begin));
    std::iota(position.begin(), position.end(), static_cast<std::int32_t>(begin));
    const StepRows rows = {.tokens = tokens.subspan(static_cast<std::size_t>(begin), count),
                           .kv = {.num_rows = static_cast<std::int64_t>(count),
                                  .sequence = sequence.data(),
                                  .position = position.data(),
                                  .page_tables = table.data(),
                                  .num_sequences = 1,
                                  .pages_per_sequence = pages},
                           .logit_rows = std::span(logit_rows).first(count),
                           .cancelled = &cancelled};
    arena.Release({});
    NIBBLE_ASSIGN_OR_RETURN(const kernels::Matrix logits, RunStep(config, weights, pool->view(), rows, arena, stream));
    NIBBLE_RETURN_IF_ERROR(visit(begin, logits));
  }
  return absl::OkStatus();
}

}  // namespace nibble::model
