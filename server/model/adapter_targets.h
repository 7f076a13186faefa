// The linears of a model that get an adapter.
#pragma once
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "server/model/adapter.h"
#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// The adapter on a weight; nothing unless the tensor is the weight of a target.
std::optional<LinearAdapter> AdapterOn(const AdapterConfig& adapter, const TensorSpec& spec);

// InvalidArgument (FIELD_VIOLATION) naming `fields`.target_pattern, .rank_pattern or .alpha_pattern: a target_pattern
// must match linears of the decoder and nothing else. Each entry of rank_pattern and alpha_pattern must match a target,
// and no two entries may match the same one.
absl::Status CheckAdapterTargets(std::string_view fields, const AdapterConfig& adapter, const ModelConfig& config);

}  // namespace nibble::model
