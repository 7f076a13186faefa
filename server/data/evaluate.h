// Mean loss of a model over a dataset, by the serving instantiation of the decoder: the one function behind the trainer's
// evaluations and the report of a conversion, so that both round alike.
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
  double loss = 0;                       // nats a trained token
  std::int64_t tokens = 0;               // trained tokens behind it
  std::vector<std::int32_t> top_tokens;  // the likeliest at each of them, where asked for
};

struct EvaluateOptions {
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();  // no example is begun after so many trained tokens
  bool top_tokens = false;
};

// What an evaluation of all these examples holds beside the model, at its largest.
struct EvaluationSize {
  std::int64_t rows = 0;   // of one step
  std::int64_t pages = 0;  // of one KV cache
};
EvaluationSize SizeOfEvaluation(const ExampleList& examples);

// `progress` gets the trained tokens done, before every layer of each step of at most some hundred rows; false ends it with Cancelled.
// Errors: InvalidArgument (NO_TRAINABLE_TOKENS; an example longer than the rope table), those of the kernels.
absl::StatusOr<Evaluation> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                    const ExampleList& examples, const EvaluateOptions& options,
                                    const kernels::Stream& stream, const std::function<bool(std::int64_t)>& progress);

}  // namespace nibble::data
