// Mean loss of a loaded model over a dataset, by the code that serves it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/data/example.h"
#include "server/model/loaded_model.h"

namespace nibble::plan {

struct Evaluation {
  double loss = 0;                       // nats a trained token
  std::int64_t tokens = 0;               // trained tokens behind it
  std::vector<std::int32_t> top_tokens;  // the likeliest, in order of the trained tokens: for the share that agrees
};

// Over the first `max_tokens` trained tokens of the examples. `progress` gets tokens done; false ends it with Cancelled.
absl::StatusOr<Evaluation> Evaluate(const model::LoadedModel& model, const std::vector<data::Example>& examples,
                                    std::int64_t max_tokens, const kernels::Stream& stream,
                                    const std::function<bool(std::int64_t)>& progress);

}  // namespace nibble::plan
