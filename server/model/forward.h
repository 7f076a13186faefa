// Runs a model over tokens: one step of any mix of sequences, or one sequence from the start.
#pragma once
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/model/arena.h"
#include "server/model/decoder_weights.h"
#include "server/model/kv_pool.h"
#include "server/model/serving_ops.h"

namespace nibble::model {

// Returns the logits [logit_rows, V] f32 of one step; they are valid until the arena is released. *hidden likewise, if
// given: ServingOps::hidden().
absl::StatusOr<kernels::Matrix> RunStep(const ModelConfig& config, const DecoderWeights& weights,
                                        const kernels::KvCacheView& cache, const StepRows& rows, Arena& arena,
                                        const kernels::Stream& stream, kernels::Matrix* hidden = nullptr);

// Feeds one sequence from position 0 in chunks of at most `chunk` tokens and hands the logits of every row to `visit`
// (first row number, [rows, V]) chunk by chunk, so that the logits of all tokens never exist at once.
// Errors: InvalidArgument (more tokens than the rope table has positions), Cancelled (`cancelled` is checked before
// every layer).
absl::Status ForEachLogits(const ModelConfig& config, const DecoderWeights& weights,
                           std::span<const std::int32_t> tokens, std::int64_t chunk, const kernels::Stream& stream,
                           const std::function<absl::Status(std::int64_t, const kernels::Matrix&)>& visit,
                           const base::Cancelled& cancelled = {});

}  // namespace nibble::model
