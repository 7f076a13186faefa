#pragma once
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/data/example.h"
#include "server/model/decoder_weights.h"
#include "server/model/record.h"

namespace nibble::trainer {

// Mean loss in nats over the trained tokens of the examples, by the serving instantiation of the decoder. `stopped` is asked
// between examples: Cancelled when it says so.
absl::StatusOr<double> Evaluate(const model::ModelConfig& config, const model::DecoderWeights& weights,
                                const std::vector<data::Example>& examples, const kernels::Stream& stream,
                                const std::function<bool()>& stopped);

}  // namespace nibble::trainer
