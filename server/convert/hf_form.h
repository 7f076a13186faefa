// A model as transformers can say it: which architecture, which of its norms, which linear class. Included by
// server/convert/*.cc only.
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
  model::ModelConfig config;              // that transformers reads
  std::optional<model::HfBitNet> bitnet;  // quantization_config
};

// Unimplemented where transformers has no place for a norm of the model, for its eps or for its activations' bits.
absl::StatusOr<HfForm> HfFormOf(const model::Artifact& source, HfBitNetClass bitnet_class);

// config.json. An int8 model's has the quantization_config of compressed-tensors.
base::Json HfConfigOf(const model::Artifact& source, const HfForm& form);

// model.safetensors or its shards (hf_shards.h), a tensor at a time. Norms before blocks that a ternary model has not are written
// so that they and the norms behind them make what the latter make alone; those that masters have not are ones. Of autobitlinear,
// offline, all floats are f32, and biases are divided by the scales that transformers multiplies them by.
absl::Status WriteHfTensors(base::FileSystem& files, const model::Artifact& source, const HfForm& form,
                            const std::string& directory, std::uint64_t max_shard_bytes);

}  // namespace nibble::convert
