// Mean loss of a model over a dataset, computed by the serving instantiation of the decoder. The trainer's evaluations
// and the report of a conversion both use it, so that both round alike.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/data/example.h"
#include "server/model/decoder_weights.h"
#include "server/model/model_config.h"

namespace nibble::data {

struct Evaluation {
  double loss = 0;                       // nats per trained token
  std::int64_t tokens = 0;               // number of trained tokens in the mean
  std::vector<std::int32_t> top_tokens;  // the most likely token at each trained token, if requested
};

struct EvaluateOptions {
  // No example starts after this many trained tokens.
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  bool top_tokens = false;
};

// Peak size of an evaluation of all examples, besides the model.
struct EvaluationSize {
  std::int64_t rows = 0;   // of one step
  std::int64_t pages = 0;  // of one KV cache
};
EvaluationSize SizeOfEvaluation(const ExampleList& examples);

// Before every layer of each step, calls `progress` with the number of trained tokens done so far. A step has at most a
// few hundred rows. If `progress` returns false, the result is Cancelled. Errors: InvalidArgument (NO_TRAINABLE_TOKENS;
// an example longer than the rope table), those of the kernels.
absl::StatusOr<Evaluation> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                    const ExampleList& examples, const EvaluateOptions& options,
                                    const kernels::Stream& stream, const std::function<bool(std::int64_t)>& progress);

}  // namespace nibble::data
