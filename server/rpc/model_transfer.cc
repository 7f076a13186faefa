#include "server/rpc/model_transfer.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/registry/export_reader.h"
#include "server/registry/uploaded_model.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/time.h"
#include "server/rpc/tracked_upload.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

class ModelUpload final : public TrackedUpload<v1::UploadModelRequest, v1::UploadModelHeader, registry::UploadedModel> {
 public:
  ModelUpload(const CallEnvironment& environment, registry::ModelLibrary& library, v1::UploadModelResponse* response)
      : TrackedUpload(environment, library.uploads(), registry::UploadKind::kModel),
        library_(library),
        response_(response) {}

 private:
  absl::Status TakeHeader(const v1::UploadModelHeader& header) override {
    if (header.size_bytes() < 0)
      return FieldError("header.size_bytes", StrCat("is ", header.size_bytes(), ", wanted 0 or more"));
    const auto limit = static_cast<std::int64_t>(library_.options().upload_limits.max_total_bytes);
    if (header.has_size_bytes() && header.size_bytes() > limit) {
      return base::WithReason(
          absl::ResourceExhaustedError(StrCat("size_bytes: ", header.size_bytes(), ", the limit is ", limit)),
          "MODEL_TOO_LARGE", {{"max_bytes", std::to_string(limit)}});
    }
    return Open(header, header.size_bytes());
  }
  absl::StatusOr<std::unique_ptr<registry::UploadContent>> MakeContent(const v1::UploadModelHeader&) override {
    NIBBLE_ASSIGN_OR_RETURN(auto upload, library_.BeginUpload());
    return std::unique_ptr<registry::UploadContent>(std::make_unique<registry::UploadedModel>(std::move(upload)));
  }
  absl::StatusOr<bool> TakeNext(const v1::UploadModelRequest& message, registry::UploadedModel& model) override {
    switch (message.message_case()) {
      case v1::UploadModelRequest::kFile:
        NIBBLE_RETURN_IF_ERROR(model.BeginFile(FromProto(message.file())));
        return false;
      case v1::UploadModelRequest::kChunk: return TakeChunk(message.chunk(), model);
      case v1::UploadModelRequest::kFinish: return TakeFinish(message.finish(), model);
      default: return FieldError("message", "is not set, wanted header, file, chunk or finish");
    }
  }
  absl::StatusOr<bool> TakeChunk(const std::string& chunk, registry::UploadedModel& model) {
    NIBBLE_RETURN_IF_ERROR(CheckChunk(chunk));
    NIBBLE_RETURN_IF_ERROR(model.Append(chunk, stream()));
    return false;
  }
  absl::StatusOr<bool> TakeFinish(const v1::UploadFinish& finish, registry::UploadedModel& model) {
    NIBBLE_RETURN_IF_ERROR(model.Finish(finish.sha256()));
    response_->set_upload_id(stream().id());
    for (const registry::FileEntry& file : model.files()) *response_->add_files() = ToProto(file);
    *response_->mutable_expire_time() = ToProto(stream().Finish());
    return true;
  }

  registry::ModelLibrary& library_;
  v1::UploadModelResponse* const response_;
};

// Maximum chunks that one Fill() pushes. Nearly twice as many may wait: if the reader empties the queue during a
// Fill(), another Fill() follows.
constexpr std::size_t kChunksAhead = 16;
// For --min_read_rate, 64 KiB of a download count as one message of an answer.
constexpr double kChunksPerMessage = (64 << 10) / static_cast<double>(registry::ExportReader::kPieceBytes);

// One download. Fill() pushes up to kChunksAhead chunks. The stream calls Fill() again when the reader has taken them.
class Download : public std::enable_shared_from_this<Download> {
 public:
  using Stream = StreamReactor<v1::DownloadArtifactResponse>;
  Download(std::shared_ptr<Stream> stream, std::shared_ptr<const registry::ExportedFiles> exported,
           std::vector<registry::FileEntry> files)
      : stream_(std::move(stream)), reader_(std::move(exported), std::move(files)) {}

  void Begin() {
    auto pump = std::make_shared<base::Pump>(stream_->call().environment().workers,
                                             [self = shared_from_this()] { self->Fill(); });
    stream_->OnSpace([pump] { pump->Wake(); });
    pump->Wake();
    stream_->WatchReader(kChunksPerMessage * stream_->call().environment().min_read_rate);
  }

 private:
  void Fill() {
    if (absl::Status status = TryFill(); !status.ok()) stream_->End(std::move(status));
  }
  absl::Status TryFill() {
    for (std::size_t i = 0; i < kChunksAhead && stream_->space() > 0; ++i) {
      v1::DownloadArtifactResponse message;
      NIBBLE_ASSIGN_OR_RETURN(const bool more, Next(message));
      if (!stream_->Push(message)) return absl::OkStatus();
      if (more) continue;
      stream_->End(absl::OkStatus());
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }
  // False: `message` is the finish.
  absl::StatusOr<bool> Next(v1::DownloadArtifactResponse& message) {
    std::string bytes;
    NIBBLE_ASSIGN_OR_RETURN(const registry::ExportReader::Step step, reader_.Next(bytes));
    switch (step) {
      case registry::ExportReader::Step::kFile: *message.mutable_file() = ToProto(reader_.file()); return true;
      case registry::ExportReader::Step::kBytes: message.set_chunk(std::move(bytes)); return true;
      case registry::ExportReader::Step::kEnd: break;
    }
    message.mutable_finish()->set_sha256(reader_.Digest());
    return false;
  }

  const std::shared_ptr<Stream> stream_;
  registry::ExportReader reader_;
};

}  // namespace

std::unique_ptr<UploadSink<v1::UploadModelRequest>> MakeModelUpload(const CallEnvironment& environment,
                                                                    registry::ModelLibrary& library,
                                                                    v1::UploadModelResponse* response) {
  return std::make_unique<ModelUpload>(environment, library, response);
}

void SendArtifact(std::shared_ptr<StreamReactor<v1::DownloadArtifactResponse>> stream, registry::ModelLibrary& library,
                  const v1::DownloadArtifactRequest& request) {
  const auto exported = library.exporter().Exported(request.artifact_id());
  if (!exported.ok()) return stream->End(exported.status());
  std::vector<registry::FileEntry> files;
  for (const registry::FileEntry& file : (*exported)->files) {
    if (!request.has_path() || request.path() == file.path) files.push_back(file);
  }
  if (files.empty()) {
    return stream->End(
        base::WithReason(absl::NotFoundError(StrCat("path: the export has no file ", request.path().substr(0, 256))),
                         "ARTIFACT", {{"name", request.path().substr(0, 64)}}));
  }
  std::make_shared<Download>(std::move(stream), *exported, std::move(files))->Begin();
}

}  // namespace nibble::rpc
