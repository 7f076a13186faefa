// Makes an artifact directory: whole when Finish returned OK, gone otherwise.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/model/artifact.h"
#include "server/model/safetensors_writer.h"

namespace nibble::model {

// One thread.
class ArtifactWriter {
 public:
  // `directory` must not be there, or be empty (AlreadyExists otherwise). The plan is that of model.safetensors; tensors must
  // fit what StoredTensors wants of config and info when Finish is called.
  static absl::StatusOr<std::unique_ptr<ArtifactWriter>> Create(base::FileSystem& files, const std::string& directory,
                                                                std::vector<TensorPlan> plan);
  // The tensors are those of `base`, which has one file of them, its own (no adapter): the file is shared (ShareFile) where the file
  // system can, else copied. tensors() may not be called. `cancelled` is asked before every tensor.
  static absl::StatusOr<std::unique_ptr<ArtifactWriter>> CreateOn(base::FileSystem& files, const std::string& directory,
                                                                  const Artifact& base, const base::Cancelled& cancelled);
  // Without Finish: removes the directory.
  ~ArtifactWriter();
  ArtifactWriter(const ArtifactWriter&) = delete;
  ArtifactWriter& operator=(const ArtifactWriter&) = delete;

  SafetensorsWriter& tensors() { return *tensors_; }
  // tokenizer.json and its like: small files beside the tensors, digested into provenance["files"].
  absl::Status PutFile(std::string_view name, std::string_view bytes);
  // Those of kCompanionFiles that the other artifact has.
  absl::Status CopyCompanions(const std::string& from_directory);
  // adapter_model.safetensors and adapter_config.json; values are f32, one vector for each of AdapterTensors.
  absl::Status PutAdapter(const ModelConfig& model, const AdapterConfig& adapter,
                          const std::vector<std::vector<float>>& values);

  // Writes config.json and nibble.json, syncs, opens what it wrote. info.weights_digest and provenance["files"] are filled in.
  absl::StatusOr<ArtifactInfo> Finish(const ModelConfig& config, ArtifactInfo info);

 private:
  ArtifactWriter(base::FileSystem& files, std::string directory) : files_(files), directory_(std::move(directory)) {}

  base::FileSystem& files_;
  const std::string directory_;
  std::unique_ptr<SafetensorsWriter> tensors_;  // null where the file is shared
  std::vector<TensorDigest> shared_digests_;
  std::vector<TensorDigest> adapter_digests_;
  base::Json file_digests_ = base::Json::object();
  bool finished_ = false;
};

// What a model carries beside its weights, whatever their format.
inline constexpr const char* kCompanionFiles[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                                  "generation_config.json"};
inline constexpr std::uint64_t kMaxCompanionBytes = 64 << 20;

}  // namespace nibble::model
