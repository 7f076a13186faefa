// Opens safetensors from disk: one file, or the shards of an index.
#include <map>
#include <set>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/safetensors.h"

namespace nibble::model {
namespace {

using base::StrCat;

constexpr std::uint64_t kMaxIndexBytes = 64 << 20;  // kMaxTensors entries of usual length take about 10 MB
constexpr char kIndexName[] = "model.safetensors.index.json";

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

absl::Status AddFile(const std::string& path, SafetensorsFiles& out) {
  NIBBLE_ASSIGN_OR_RETURN(auto mapped, base::MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(mapped->bytes(), BaseName(path)));
  for (SafetensorsTensor& tensor : header.tensors) {
    const std::string name = tensor.name;
    if (!out.tensors.emplace(name, std::move(tensor)).second) {
      return absl::DataLossError(StrCat(BaseName(path), ": tensor \"", name, "\" is also in another shard"));
    }
  }
  out.metadata = std::move(header.metadata);
  out.files.push_back(std::move(mapped));
  return absl::OkStatus();
}

// Allows only names of files beside the index, no paths.
absl::Status CheckShardName(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255 || name.find('/') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos || !name.ends_with(".safetensors")) {
    return absl::InvalidArgumentError(
        StrCat(kIndexName, ": \"", name.substr(0, 64), "\" is not the name of a .safetensors file beside it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsFiles> OpenShards(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(base::JoinPath(directory, kIndexName), kMaxIndexBytes));
  auto index = base::ParseJson(text);
  if (!index.ok()) return absl::InvalidArgumentError(StrCat(kIndexName, ": ", base::ToStd(index.status().message())));
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (map == index->end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        StrCat(kIndexName, ": wanted \"weight_map\", an object that maps tensors to files"));
  }
  if (map->size() > kMaxTensors) {
    return base::WithReason(absl::ResourceExhaustedError(StrCat(kIndexName, ": more than ", kMaxTensors, " tensors")),
                            "MALFORMED_FILE");
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(StrCat(kIndexName, ": wanted the name of a file for \"", tensor, "\""));
    }
    const std::string name = shard.get<std::string>();
    NIBBLE_RETURN_IF_ERROR(CheckShardName(name));
    shards[name].insert(tensor);
  }
  SafetensorsFiles out;
  for (const auto& [shard, tensors] : shards) {
    if (!files.Exists(base::JoinPath(directory, shard))) {
      return absl::NotFoundError(StrCat(kIndexName, " lists ", shard, ", which is missing"));
    }
    const std::size_t num_before = out.tensors.size();
    NIBBLE_RETURN_IF_ERROR(AddFile(base::JoinPath(directory, shard), out));
    const std::size_t num_added = out.tensors.size() - num_before;
    // Earlier shards hold only tensors that the index lists for them, so a tensor found here is in this shard.
    for (const std::string& tensor : tensors) {
      if (!out.tensors.contains(tensor)) {
        return absl::DataLossError(
            StrCat(kIndexName, " puts \"", tensor, "\" into ", shard, ", which has no such tensor"));
      }
    }
    if (num_added != tensors.size()) {
      return absl::DataLossError(
          StrCat(shard, " holds ", num_added, " tensors, ", kIndexName, " lists ", tensors.size(), " for it"));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<SafetensorsFiles> OpenSafetensors(const std::string& path) {
  SafetensorsFiles out;
  NIBBLE_RETURN_IF_ERROR(AddFile(path, out));
  return out;
}

absl::StatusOr<SafetensorsFiles> OpenSafetensorsModel(base::FileSystem& files, const std::string& directory) {
  const std::string single = base::JoinPath(directory, kWeightsFile);
  if (files.Exists(single)) return OpenSafetensors(single);
  if (files.Exists(base::JoinPath(directory, kIndexName))) return OpenShards(files, directory);
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
    if (files.Exists(base::JoinPath(directory, pickle))) {
      return base::WithReason(
          absl::UnimplementedError(StrCat(pickle, ": pickled weights are not supported; convert them to safetensors")),
          "UNSUPPORTED_MODEL");
    }
  }
  return absl::NotFoundError("no model.safetensors and no model.safetensors.index.json");
}

}  // namespace nibble::model
