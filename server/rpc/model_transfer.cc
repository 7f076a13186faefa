#include "server/rpc/model_transfer.h"

#include <fstream>
#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

class ModelUpload final : public UploadSink<v1::UploadModelRequest> {
 public:
  ModelUpload(const Edge& edge, ModelLibrary& library, v1::UploadModelResponse* response)
      : max_chunk_bytes_(edge.max_chunk_bytes), library_(library), response_(response) {}

  absl::StatusOr<bool> Take(const v1::UploadModelRequest& message) override {
    switch (message.message_case()) {
      case v1::UploadModelRequest::kHeader: return TakeHeader(message.header());
      case v1::UploadModelRequest::kFile: return TakeFile(message.file());
      case v1::UploadModelRequest::kChunk: return TakeChunk(message.chunk());
      case v1::UploadModelRequest::kFinish: return TakeFinish(message.finish());
      default: return FieldError("message", "is not set, wanted header, file, chunk or finish");
    }
  }

 private:
  absl::StatusOr<bool> TakeHeader(const v1::UploadModelHeader& header) {
    if (upload_ != nullptr) return FieldError("header", "came twice");
    if (header.size_bytes() < 0) return FieldError("header.size_bytes", StrCat("is ", header.size_bytes(), ", wanted 0 or more"));
    const auto limit = static_cast<std::int64_t>(library_.options().upload_limits.max_total_bytes);
    if (header.has_size_bytes() && header.size_bytes() > limit) {
      return base::WithReason(absl::ResourceExhaustedError(StrCat("size_bytes: ", header.size_bytes(), ", the limit is ", limit)),
                              "MODEL_TOO_LARGE", {{"max_bytes", std::to_string(limit)}});
    }
    NIBBLE_ASSIGN_OR_RETURN(upload_, library_.BeginUpload());
    return false;
  }
  absl::StatusOr<bool> TakeFile(const v1::FileEntry& file) {
    if (upload_ == nullptr) return FieldError("header", "is missing, wanted it first");
    NIBBLE_RETURN_IF_ERROR(EndFile());
    if (file.size_bytes() < 0) return FieldError("file.size_bytes", StrCat("is ", file.size_bytes(), ", wanted 0 or more"));
    if (!file.sha256().empty()) return FieldError("file.sha256", "is set, wanted empty: the digest comes with finish");
    NIBBLE_RETURN_IF_ERROR(upload_->BeginFile(file.path()));
    file_ = file;
    file_digest_ = base::Sha256();
    received_ = 0;
    return false;
  }
  absl::StatusOr<bool> TakeChunk(const std::string& chunk) {
    if (!file_.has_value()) return FieldError("chunk", "came before a file");
    if (chunk.empty() || chunk.size() > max_chunk_bytes_) {
      return FieldError("chunk", StrCat("has ", chunk.size(), " bytes, wanted 1 to ", max_chunk_bytes_));
    }
    received_ += static_cast<std::int64_t>(chunk.size());
    if (received_ > file_->size_bytes()) {
      return FieldError("file.size_bytes", StrCat(file_->path(), " has more than the ", file_->size_bytes(), " bytes announced"));
    }
    NIBBLE_RETURN_IF_ERROR(upload_->Append(chunk));
    digest_.Update(chunk);
    file_digest_.Update(chunk);
    return false;
  }
  absl::StatusOr<bool> TakeFinish(const v1::UploadFinish& finish) {
    if (upload_ == nullptr) return FieldError("header", "is missing, wanted it first");
    NIBBLE_RETURN_IF_ERROR(EndFile());
    if (files_.empty()) return FieldError("file", "is missing, wanted at least one file");
    if (const std::string digest = digest_.HexDigest(); finish.sha256() != digest) {
      return FieldError("finish.sha256", StrCat("is ", finish.sha256().substr(0, 64), ", the chunks that arrived have ", digest));
    }
    *response_ = library_.KeepUpload(std::move(upload_));
    for (v1::FileEntry& file : files_) *response_->add_files() = std::move(file);
    return true;
  }
  absl::Status EndFile() {
    if (!file_.has_value()) return absl::OkStatus();
    if (received_ != file_->size_bytes()) {
      return FieldError("file.size_bytes", StrCat(file_->path(), " has ", received_, " bytes, announced ", file_->size_bytes()));
    }
    file_->set_sha256(file_digest_.HexDigest());
    NIBBLE_RETURN_IF_ERROR(upload_->FinishFile(file_->sha256()));
    files_.push_back(*std::move(file_));
    file_.reset();
    return absl::OkStatus();
  }

  const std::size_t max_chunk_bytes_;
  ModelLibrary& library_;
  v1::UploadModelResponse* const response_;
  std::unique_ptr<store::Upload> upload_;
  std::optional<v1::FileEntry> file_;  // that is open
  std::vector<v1::FileEntry> files_;
  std::int64_t received_ = 0;
  base::Sha256 file_digest_;
  base::Sha256 digest_;
};

// One download: as many chunks as there is room for, then it waits to be called again.
class Download : public std::enable_shared_from_this<Download> {
 public:
  using Stream = StreamReactor<v1::DownloadArtifactResponse>;
  Download(std::shared_ptr<Stream> stream, std::shared_ptr<const ModelLibrary::ExportedFiles> exported,
           std::vector<v1::FileEntry> files)
      : stream_(std::move(stream)), exported_(std::move(exported)), files_(std::move(files)) {}

  void Begin() {
    auto pump = std::make_shared<Pump>(stream_->call().edge().workers, [self = shared_from_this()] { self->Fill(); });
    stream_->OnSpace([pump] { pump->Wake(); });
    pump->Wake();
  }

 private:
  void Fill() {
    if (absl::Status status = TryFill(); !status.ok()) stream_->End(std::move(status));
  }
  absl::Status TryFill() {
    // A few chunks of 1 MiB ahead are enough.
    for (std::size_t i = 0; i < 4 && stream_->space() > 0; ++i) {
      v1::DownloadArtifactResponse message;
      NIBBLE_ASSIGN_OR_RETURN(const bool more, Next(message));
      if (!stream_->Push(message)) return absl::OkStatus();
      if (more) continue;
      stream_->End(absl::OkStatus());
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }
  // False: that was `finish`.
  absl::StatusOr<bool> Next(v1::DownloadArtifactResponse& message) {
    if (!open_ && next_file_ == files_.size()) {
      message.mutable_finish()->set_sha256(digest_.HexDigest());
      return false;
    }
    if (!open_) {
      const v1::FileEntry& entry = files_[next_file_++];
      file_ = std::ifstream(base::JoinPath(exported_->directory, entry.path()), std::ios::binary);
      if (!file_) return absl::DataLossError(StrCat(entry.path(), " cannot be read"));
      left_ = entry.size_bytes();
      open_ = left_ > 0;
      *message.mutable_file() = entry;
      return true;
    }
    std::string& chunk = *message.mutable_chunk();
    chunk.resize(static_cast<std::size_t>(std::min<std::int64_t>(left_, 1 << 20)));
    if (!file_.read(chunk.data(), static_cast<std::streamsize>(chunk.size()))) {
      return absl::DataLossError(StrCat(files_[next_file_ - 1].path(), " is shorter than it was"));
    }
    digest_.Update(chunk);
    left_ -= static_cast<std::int64_t>(chunk.size());
    open_ = left_ > 0;
    return true;
  }

  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<const ModelLibrary::ExportedFiles> exported_;
  const std::vector<v1::FileEntry> files_;
  std::size_t next_file_ = 0;
  bool open_ = false;
  std::ifstream file_;
  std::int64_t left_ = 0;
  base::Sha256 digest_;
};

}  // namespace

std::unique_ptr<UploadSink<v1::UploadModelRequest>> MakeModelUpload(const Edge& edge, ModelLibrary& library,
                                                                    v1::UploadModelResponse* response) {
  return std::make_unique<ModelUpload>(edge, library, response);
}

void SendArtifact(std::shared_ptr<StreamReactor<v1::DownloadArtifactResponse>> stream, ModelLibrary& library,
                  const v1::DownloadArtifactRequest& request) {
  const auto exported = library.Exported(request.artifact_id());
  if (!exported.ok()) return stream->End(exported.status());
  std::vector<v1::FileEntry> files;
  for (const v1::FileEntry& file : (*exported)->files) {
    if (!request.has_path() || request.path() == file.path()) files.push_back(file);
  }
  if (files.empty()) {
    return stream->End(base::WithReason(absl::NotFoundError(StrCat("path: the export has no file ", request.path().substr(0, 256))),
                                        "ARTIFACT", {{"name", request.path().substr(0, 64)}}));
  }
  std::make_shared<Download>(std::move(stream), *exported, std::move(files))->Begin();
}

}  // namespace nibble::rpc
