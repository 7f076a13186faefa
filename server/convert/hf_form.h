// Represents a model in transformers' terms: architecture, norms, linear class. Included by server/convert/*.cc only.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/convert/export.h"
#include "server/model/artifact.h"
#include "server/model/hf_bitnet.h"

namespace nibble::convert {

struct HfForm {
  model::ModelConfig config;              // as transformers reads it
  std::optional<model::HfBitNet> bitnet;  // quantization_config
};

// Unimplemented if transformers cannot represent the model's norms or their eps, the bits of its activations, or the
// width of its heads beside norms before o_proj and down_proj.
absl::StatusOr<HfForm> HfFormOf(const model::Artifact& source, HfBitNetClass bitnet_class);

// Contents of config.json. An int8 model gets the quantization_config of compressed-tensors.
base::Json HfConfigOf(const model::Artifact& source, const HfForm& form);

// Writes model.safetensors or its shards (hf_shards.h), one tensor at a time. Adds block norms that the model lacks. In
// masters, they are ones. In a ternary model, it scales the norms after them, so that the results stay the same. For
// autobitlinear, offline, it writes all floats as f32, and divides biases by the scales that transformers multiplies
// them by.
absl::Status WriteHfTensors(base::FileSystem& files, const model::Artifact& source, const HfForm& form,
                            const std::string& directory, std::uint64_t max_shard_bytes);

}  // namespace nibble::convert
