// Writes the safetensors files of a Hugging Face directory: one file, or shards and their index. Included by
// server/convert/*.cc only.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/model/safetensors_writer.h"
#include "server/model/tensor_table.h"

namespace nibble::convert {

// A weight and its tensors, such as codes and scale. They are never split between files.
struct HfWeight {
  model::TensorSpec spec;
  std::vector<model::TensorPlan> tensors;
};

// Fills one file after the other with the weights in order. A file ends before the weight with which its tensors would
// exceed `max_shard_bytes`; a weight of more than max_shard_bytes gets a file of its own. A single file is
// model.safetensors; several are model-0000k-of-0000n.safetensors with model.safetensors.index.json. `put` writes the
// tensors of a weight; it is called in the file's order.
// Source: huggingface_hub's split_torch_state_dict_into_shards. The only difference: after a weight that gets its own
// file, huggingface_hub continues the file before that weight, and this function begins a new file.
absl::Status WriteHfShards(base::FileSystem& files, const std::string& directory, const std::vector<HfWeight>& weights,
                           std::uint64_t max_shard_bytes,
                           const std::function<absl::Status(const model::TensorSpec&, model::SafetensorsWriter&)>& put);

}  // namespace nibble::convert
