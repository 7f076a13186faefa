// Writes an artifact directory. It is complete when Finish returned OK; otherwise the destructor removes it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/model/artifact.h"
#include "server/model/file_names.h"
#include "server/model/safetensors_writer.h"

namespace nibble::model {

// One thread.
class ArtifactWriter {
 public:
  // `directory` must not exist, or must be empty (AlreadyExists otherwise). The plan is for model.safetensors; at
  // Finish, the tensors must match StoredTensors of config and info.
  static absl::StatusOr<std::unique_ptr<ArtifactWriter>> Create(base::FileSystem& files, const std::string& directory,
                                                                std::vector<TensorPlan> plan);
  // Takes the tensors of `base`, which must have no adapter: its tensor file is shared (ShareFile) if the file system
  // can, otherwise copied. tensors() must not be called. `cancelled` is checked before every tensor.
  static absl::StatusOr<std::unique_ptr<ArtifactWriter>> CreateOn(base::FileSystem& files, const std::string& directory,
                                                                  const Artifact& base,
                                                                  const base::Cancelled& cancelled);
  // Removes the directory unless Finish returned OK.
  ~ArtifactWriter();
  ArtifactWriter(const ArtifactWriter&) = delete;
  ArtifactWriter& operator=(const ArtifactWriter&) = delete;

  SafetensorsWriter& tensors() { return *tensors_; }
  // For small files beside the tensors, such as tokenizer.json; their digests are recorded in provenance["files"].
  absl::Status PutFile(std::string_view name, std::string_view bytes);
  // Copies the files of kCompanionFiles that the other artifact has.
  absl::Status CopyCompanions(const std::string& from_directory);
  // Writes adapter_model.safetensors and adapter_config.json; values are f32, one vector per tensor of AdapterTensors.
  absl::Status PutAdapter(const ModelConfig& model, const AdapterConfig& adapter,
                          const std::vector<std::vector<float>>& values);

  // Writes config.json and nibble.json, syncs, and opens the result as a check. Fills in info.weights_digest and
  // provenance["files"].
  absl::StatusOr<ArtifactInfo> Finish(const ModelConfig& config, ArtifactInfo info);

 private:
  ArtifactWriter(base::FileSystem& files, std::string directory) : files_(files), directory_(std::move(directory)) {}

  base::FileSystem& files_;
  const std::string directory_;
  std::unique_ptr<SafetensorsWriter> tensors_;  // null if the file is shared
  std::vector<TensorDigest> shared_digests_;
  std::vector<TensorDigest> adapter_digests_;
  base::Json file_digests_ = base::Json::object();
  bool finished_ = false;
};

// Files that a model carries beside its weights, in every format.
inline constexpr const char* kCompanionFiles[] = {kTokenizerFile, kTokenizerConfigFile, kChatTemplateFile,
                                                  kGenerationConfigFile};
inline constexpr std::uint64_t kMaxCompanionBytes = 64 << 20;

}  // namespace nibble::model
