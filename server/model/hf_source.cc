// A directory as transformers 4 and 5 save it.
#include <algorithm>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact_writer.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

absl::StatusOr<base::Json> ReadJson(base::FileSystem& files, const std::string& directory, const char* name) {
  const std::string path = base::JoinPath(directory, name);
  if (!files.Exists(path)) return absl::NotFoundError(StrCat(name, " is not there"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(path, kMaxConfigBytes));
  auto json = base::ParseJson(text);
  if (!json.ok()) return absl::InvalidArgumentError(StrCat(name, ": ", base::ToStd(json.status().message())));
  return json;
}

// Buffers that old checkpoints carry: RopeInverseFrequencies makes them anew.
bool IsRotaryTable(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

class HfSource : public WeightSource {
 public:
  HfSource() : WeightSource("huggingface") {}

  absl::Status Open(base::FileSystem& files, const std::string& directory) {
    NIBBLE_ASSIGN_OR_RETURN(base::Json json, ReadJson(files, directory, "config.json"));
    if (files.Exists(base::JoinPath(directory, "generation_config.json"))) {
      // Where generation stops is written here; config.json often knows only one of several end tokens.
      NIBBLE_ASSIGN_OR_RETURN(const base::Json generation, ReadJson(files, directory, "generation_config.json"));
      const auto eos = generation.is_object() ? generation.find("eos_token_id") : generation.end();
      if (eos != generation.end() && !eos->is_null() && json.is_object()) json["eos_token_id"] = *eos;
    }
    NIBBLE_ASSIGN_OR_RETURN(config_, ParseHfConfig(json));
    if (!files.Exists(base::JoinPath(directory, "tokenizer.json"))) {
      return base::WithReason(
          absl::NotFoundError(files.Exists(base::JoinPath(directory, "tokenizer.model"))
                                  ? "tokenizer.json is not there, and tokenizer.model is not read: save the tokenizer as a fast one"
                                  : "tokenizer.json is not there"),
          "NO_TOKENIZER");
    }
    for (const char* name : kCompanionFiles) {
      const std::string path = base::JoinPath(directory, name);
      if (!files.Exists(path)) continue;
      NIBBLE_ASSIGN_OR_RETURN(files_[name], files.Read(path, kMaxCompanionBytes));
    }
    NIBBLE_ASSIGN_OR_RETURN(stored_, OpenSafetensorsModel(files, directory));
    return CheckTensors();
  }

  absl::StatusOr<std::string> Read(const TensorSpec& spec, DType dtype) const override {
    const SafetensorsTensor& tensor = stored_.tensors.at(spec.name);
    return ConvertFloats(tensor.bytes, *tensor.dtype, dtype, NumElements(tensor.shape).value_or(0));
  }

 private:
  absl::Status CheckTensors() {
    std::map<std::string, const SafetensorsTensor*> rest;
    for (const auto& [name, tensor] : stored_.tensors) rest.emplace(name, &tensor);
    for (const TensorSpec& spec : RequiredTensors(config_)) {
      const auto it = rest.find(spec.name);
      if (it == rest.end()) return absl::InvalidArgumentError(StrCat("no tensor \"", spec.name, "\", config.json wants it"));
      const SafetensorsTensor& tensor = *it->second;
      if (tensor.shape != spec.shape) {
        return absl::InvalidArgumentError(StrCat("tensor \"", spec.name, "\" has shape ", ShapeText(tensor.shape),
                                                 ", config.json wants ", ShapeText(spec.shape)));
      }
      if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
        return base::WithReason(absl::UnimplementedError(StrCat("tensor \"", spec.name, "\" is ", tensor.dtype_name,
                                                                " (supported: F32, F16, BF16)")),
                                "UNSUPPORTED_MODEL");
      }
      rest.erase(it);
    }
    for (const auto& [name, tensor] : rest) {
      if (!IsRotaryTable(name) && !(config_.tied_embeddings && name == kHeadName)) {
        return base::WithReason(absl::UnimplementedError(StrCat("tensor \"", name, "\" is none of a Llama model with this config.json")),
                                "UNSUPPORTED_MODEL");
      }
      ignored_tensors_.push_back(name);
    }
    return absl::OkStatus();
  }

  SafetensorsFiles stored_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfDirectory(base::FileSystem& files, const std::string& directory) {
  auto source = std::make_unique<HfSource>();
  NIBBLE_RETURN_IF_ERROR(source->Open(files, directory));
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace nibble::model
