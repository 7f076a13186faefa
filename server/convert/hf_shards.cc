#include "server/convert/hf_shards.h"

#include <algorithm>
#include <map>
#include <span>

#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using Weights = std::span<const HfWeight>;

std::uint64_t Bytes(const HfWeight& weight) {
  std::uint64_t bytes = 0;
  for (const model::TensorPlan& tensor : weight.tensors) {
    bytes += static_cast<std::uint64_t>(model::NumElements(tensor.shape).value_or(0) * kernels::SizeOf(tensor.dtype));
  }
  return bytes;
}

std::vector<Weights> Split(Weights weights, std::uint64_t max_shard_bytes) {
  std::vector<Weights> shards;
  std::size_t begin = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint64_t more = Bytes(weights[i]);
    // bytes + more > max_shard_bytes, without overflow.
    if (i > begin && (more > max_shard_bytes || bytes > max_shard_bytes - more)) {
      shards.push_back(weights.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += more;
  }
  shards.push_back(weights.subspan(begin));
  return shards;
}

std::string FileName(std::size_t shard, std::size_t shards) {
  if (shards == 1) return model::kWeightsFile;
  return StrCat("model-", absl::Dec(shard + 1, absl::kZeroPad5), "-of-", absl::Dec(shards, absl::kZeroPad5),
                ".safetensors");
}

}  // namespace

absl::Status WriteHfShards(
    base::FileSystem& files, const std::string& directory, const std::vector<HfWeight>& weights,
    std::uint64_t max_shard_bytes,
    const std::function<absl::Status(const model::TensorSpec&, model::SafetensorsWriter&)>& put) {
  const std::vector<Weights> shards = Split(weights, max_shard_bytes);
  std::map<std::string, std::string> weight_map;
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = FileName(i, shards.size());
    std::vector<model::TensorPlan> plan;
    std::vector<model::TensorSpec> specs;
    for (const HfWeight& weight : shards[i]) {
      specs.push_back(weight.spec);
      plan.insert(plan.end(), weight.tensors.begin(), weight.tensors.end());
      total_bytes += Bytes(weight);
    }
    for (const model::TensorPlan& tensor : plan) weight_map[tensor.name] = name;
    // transformers refuses files that do not name the framework they were written for.
    NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::SafetensorsWriter::Create(files, base::JoinPath(directory, name),
                                                                                std::move(plan), {{"format", "pt"}}));
    model::SortForWriter(*writer, specs);
    for (const model::TensorSpec& spec : specs) NIBBLE_RETURN_IF_ERROR(put(spec, *writer));
    NIBBLE_RETURN_IF_ERROR(writer->Finish());
  }
  if (shards.size() == 1) return absl::OkStatus();
  base::Json index = base::Json::object();
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = weight_map;
  return base::WriteFileAtomically(files, base::JoinPath(directory, "model.safetensors.index.json"),
                                   base::Dump(index, 2) + "\n");
}

}  // namespace nibble::convert
