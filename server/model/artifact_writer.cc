#include "server/model/artifact_writer.h"

#include <algorithm>
#include <utility>

#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/float_convert.h"
#include "server/model/forget_pages.h"
#include "server/model/share_file.h"

namespace nibble::model {

namespace {

using base::StrCat;

absl::Status MakeEmpty(base::FileSystem& files, const std::string& directory) {
  if (files.Exists(directory)) {
    NIBBLE_ASSIGN_OR_RETURN(const auto names, files.List(directory));
    if (!names.empty()) return absl::AlreadyExistsError(StrCat(directory, " exists and is not empty"));
  }
  return files.CreateDirectories(directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArtifactWriter>> ArtifactWriter::Create(base::FileSystem& files,
                                                                       const std::string& directory,
                                                                       std::vector<TensorPlan> plan) {
  NIBBLE_RETURN_IF_ERROR(MakeEmpty(files, directory));
  std::unique_ptr<ArtifactWriter> writer(new ArtifactWriter(files, directory));
  NIBBLE_ASSIGN_OR_RETURN(writer->tensors_,
                          SafetensorsWriter::Create(files, base::JoinPath(directory, kWeightsFile), std::move(plan)));
  return writer;
}

absl::StatusOr<std::unique_ptr<ArtifactWriter>> ArtifactWriter::CreateOn(base::FileSystem& files,
                                                                         const std::string& directory,
                                                                         const Artifact& base,
                                                                         const base::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(MakeEmpty(files, directory));
  std::unique_ptr<ArtifactWriter> writer(new ArtifactWriter(files, directory));
  const std::string path = base::JoinPath(directory, kWeightsFile);
  std::vector<std::pair<std::string, TensorView>> tensors(base.tensors().begin(), base.tensors().end());
  // In the file's order, so that a copy has the same bytes.
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.second.bytes.data() < b.second.bytes.data(); });
  if (!ShareFile(base::JoinPath(base.directory(), kWeightsFile), path)) {
    std::vector<TensorPlan> plan;
    plan.reserve(tensors.size());
    for (const auto& [name, view] : tensors) plan.push_back({name, view.dtype, view.shape});
    NIBBLE_ASSIGN_OR_RETURN(writer->tensors_, SafetensorsWriter::Create(files, path, std::move(plan)));
  }
  for (const auto& [name, view] : tensors) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    const std::string_view bytes(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    if (writer->tensors_ != nullptr) {
      NIBBLE_RETURN_IF_ERROR(writer->tensors_->Put(name, bytes));
    } else {
      writer->shared_digests_.push_back({name, view.dtype, view.shape, base::Sha256Hex(bytes)});
    }
    ForgetPages(view.bytes);
  }
  return writer;
}

ArtifactWriter::~ArtifactWriter() {
  if (finished_) return;
  tensors_.reset();
  if (const absl::Status status = files_.RemoveAll(directory_); !status.ok()) {
    base::LogWarning("cannot remove an unfinished artifact", {{"error", std::string(status.message())}});
  }
}

absl::Status ArtifactWriter::PutFile(std::string_view name, std::string_view bytes) {
  NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files_, base::JoinPath(directory_, name), bytes));
  file_digests_[std::string(name)] = base::Sha256Hex(bytes);
  return absl::OkStatus();
}

absl::Status ArtifactWriter::CopyCompanions(const std::string& from_directory) {
  for (const char* name : kCompanionFiles) {
    const std::string path = base::JoinPath(from_directory, name);
    if (!files_.Exists(path)) continue;
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, files_.Read(path, kMaxCompanionBytes));
    NIBBLE_RETURN_IF_ERROR(PutFile(name, bytes));
  }
  return absl::OkStatus();
}

absl::Status ArtifactWriter::PutAdapter(const ModelConfig& model, const AdapterConfig& adapter,
                                        const std::vector<std::vector<float>>& values) {
  const std::vector<TensorPlan> plan = AdapterTensors(model, adapter);
  if (values.size() != plan.size()) {
    return absl::InvalidArgumentError(StrCat("adapter has ", values.size(), " tensors, wanted ", plan.size()));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      auto writer,
      SafetensorsWriter::Create(files_, base::JoinPath(directory_, kAdapterWeightsFile), plan, {{"format", "pt"}}));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(writer->Put(plan[i].name, FromFloats(values[i], kernels::DType::kF32)));
  }
  NIBBLE_RETURN_IF_ERROR(writer->Finish());
  adapter_digests_ = writer->digests();
  return PutFile(kAdapterConfigFile, base::Dump(ToPeftConfig(adapter), 2) + "\n");
}

absl::StatusOr<ArtifactInfo> ArtifactWriter::Finish(const ModelConfig& config, ArtifactInfo info) {
  std::vector<TensorDigest> digests = shared_digests_;
  if (tensors_ != nullptr) {
    NIBBLE_RETURN_IF_ERROR(tensors_->Finish());
    digests = tensors_->digests();
  }
  digests.insert(digests.end(), adapter_digests_.begin(), adapter_digests_.end());
  info.weights_digest = WeightsDigest(std::move(digests));
  NIBBLE_RETURN_IF_ERROR(PutFile(kConfigFile, base::Dump(ToHfConfig(config), 2) + "\n"));
  info.provenance["files"] = file_digests_;
  NIBBLE_RETURN_IF_ERROR(WriteArtifactInfo(files_, directory_, info));
  NIBBLE_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  // The result must open: a bug in writing shows here, not at load.
  NIBBLE_RETURN_IF_ERROR(Artifact::Open(directory_).status());
  finished_ = true;
  return info;
}

}  // namespace nibble::model
