#include "server/convert/export.h"

#include <map>
#include <memory>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/hf_form.h"
#include "server/model/artifact_writer.h"
#include "server/model/file_names.h"
#include "server/model/safetensors_writer.h"
#include "server/model/saved_modules.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using model::Format;

// A directory that this object creates, and removes again unless Keep is called.
class Target {
 public:
  static absl::StatusOr<std::unique_ptr<Target>> Create(base::FileSystem& files, const std::string& path) {
    if (files.Exists(path)) {
      NIBBLE_ASSIGN_OR_RETURN(const auto names, files.List(path));
      if (!names.empty()) return absl::AlreadyExistsError(StrCat(path, " exists and is not empty"));
    }
    NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(path));
    return std::unique_ptr<Target>(new Target(files, path));
  }
  ~Target() {
    if (kept_) return;
    if (const absl::Status status = files_.RemoveAll(path_); !status.ok()) {
      base::LogWarning("cannot remove an unfinished export", {{"error", std::string(status.message())}});
    }
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  absl::Status Put(std::string_view name, std::string_view bytes) {
    return base::WriteFileAtomically(files_, base::JoinPath(path_, name), bytes);
  }
  absl::Status Copy(const std::string& from_directory, const char* name, std::uint64_t max_bytes) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, files_.Read(base::JoinPath(from_directory, name), max_bytes));
    return Put(name, bytes);
  }
  absl::Status Keep() {
    NIBBLE_RETURN_IF_ERROR(files_.SyncDirectory(path_));
    kept_ = true;
    return absl::OkStatus();
  }

 private:
  Target(base::FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  base::FileSystem& files_;
  const std::string path_;
  bool kept_ = false;
};

// Writes the artifact's tensors of the given plan, streamed from the mapped file. A tied head is the embedding.
absl::Status WriteTensors(base::FileSystem& files, const model::Artifact& source, const std::string& path,
                          std::vector<model::TensorPlan> plan, const std::map<std::string, std::string>& metadata) {
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::SafetensorsWriter::Create(files, path, std::move(plan), metadata));
  for (const model::TensorPlan& tensor : writer->order()) {
    const bool tied_head = tensor.name == model::SavedName(model::kHeadName) && source.config().tied_embeddings;
    NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view,
                            source.Tensor(tied_head ? model::SavedName(model::kEmbeddingName) : tensor.name));
    NIBBLE_RETURN_IF_ERROR(
        writer->Put(tensor.name, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}));
  }
  return writer->Finish();
}

absl::Status CopyCompanions(base::FileSystem& files, const model::Artifact& source, Target& directory) {
  for (const char* name : model::kCompanionFiles) {
    if (!files.Exists(base::JoinPath(source.directory(), name))) continue;
    NIBBLE_RETURN_IF_ERROR(directory.Copy(source.directory(), name, model::kMaxCompanionBytes));
  }
  return absl::OkStatus();
}

absl::Status WriteHfDirectory(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                              HfBitNetClass bitnet_class, std::uint64_t max_shard_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const HfForm form, HfFormOf(source, bitnet_class));
  NIBBLE_ASSIGN_OR_RETURN(const auto directory, Target::Create(files, target));
  NIBBLE_RETURN_IF_ERROR(WriteHfTensors(files, source, form, target, max_shard_bytes));
  NIBBLE_RETURN_IF_ERROR(directory->Put(model::kConfigFile, base::Dump(HfConfigOf(source, form), 2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(CopyCompanions(files, source, *directory));
  return directory->Keep();
}

}  // namespace

absl::Status ExportPeft(base::FileSystem& files, const model::Artifact& source, const std::string& target) {
  if (source.info().format != Format::kLora) {
    return absl::InvalidArgumentError(
        StrCat("format \"peft\" is for lora models, this one is ", Name(source.info().format)));
  }
  if (source.config().architecture == "phi3") {
    return base::WithReason(
        absl::UnimplementedError("format \"peft\": transformers' phi3 has fused weights, so an adapter of separate "
                                 "weights such as q_proj does not fit; convert the model to bf16 and export it as hf"),
        "UNSUPPORTED_MODEL");
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto directory, Target::Create(files, target));
  const model::AdapterConfig& adapter = *source.adapter();
  // PEFT refuses files that do not name the framework they were written for.
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {model::kBaseDigestKey, source.info().base_digest}};
  if (source.info().nf4 != model::Nf4Options()) metadata[model::kBaseNf4Key] = base::Dump(ToJson(source.info().nf4));
  std::vector<model::TensorPlan> plan = model::AdapterTensors(source.config(), adapter);
  if (model::SavesTiedEmbedding(source.config(), adapter)) {  // PEFT stores both names of the copy
    plan.push_back({model::SavedName(model::kHeadName),
                    kernels::DType::kF32,
                    {source.config().vocab_size, source.config().hidden_size}});
  }
  NIBBLE_RETURN_IF_ERROR(
      WriteTensors(files, source, base::JoinPath(target, model::kAdapterWeightsFile), std::move(plan), metadata));
  NIBBLE_RETURN_IF_ERROR(directory->Put(model::kAdapterConfigFile, base::Dump(model::ToPeftConfig(adapter), 2) + "\n"));
  // PEFT's own card begins with the same front matter.
  NIBBLE_RETURN_IF_ERROR(directory->Put(
      "README.md",
      StrCat("---\nlibrary_name: peft\n---\n\nA LoRA adapter of Nibble for a base in ", Name(source.info().base_format),
             " (weights ", source.info().base_digest, "): rank ", adapter.rank, ", alpha ", adapter.alpha, ".\n")));
  NIBBLE_RETURN_IF_ERROR(CopyCompanions(files, source, *directory));
  return directory->Keep();
}

absl::Status ExportHf(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                      HfBitNetClass bitnet_class, std::uint64_t max_shard_bytes) {
  const Format format = source.info().format;
  if (format != Format::kF32 && format != Format::kBF16 && format != Format::kTernary) {
    return absl::InvalidArgumentError(
        StrCat("format \"hf\" is for f32, bf16 and ternary models, this one is ", Name(format)));
  }
  return WriteHfDirectory(files, source, target, bitnet_class, max_shard_bytes);
}

absl::Status CheckCompressedTensors(const model::ArtifactInfo& info) {
  if (info.format != Format::kInt8) {
    return base::FieldError("format", StrCat("COMPRESSED_TENSORS is for int8 models, this one is ", Name(info.format)));
  }
  if (info.weight_only) {
    return base::FieldError("format",
                            "COMPRESSED_TENSORS requires int8 activations, this model's are bf16: convert its source "
                            "with activations INT8");
  }
  if (info.act_outliers > 0) {
    return base::FieldError("format",
                            StrCat("COMPRESSED_TENSORS cannot represent activation outliers, this model keeps ",
                                   info.act_outliers, " per row: convert its source with act_outliers 0"));
  }
  if (info.int8_head) {
    return base::FieldError("format",
                            "COMPRESSED_TENSORS requires a float head, this model's is int8: convert its source with "
                            "head BF16");
  }
  return absl::OkStatus();
}

absl::Status ExportCompressedTensors(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                                     std::uint64_t max_shard_bytes) {
  NIBBLE_RETURN_IF_ERROR(CheckCompressedTensors(source.info()));
  return WriteHfDirectory(files, source, target, HfBitNetClass::kBitLinear, max_shard_bytes);
}

}  // namespace nibble::convert
