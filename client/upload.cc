// Uploads files in chunks of at most 1 MiB, followed by their SHA-256. A new stream resumes a lost one.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "client/client.h"
#include "client/stubs.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;  // The limit of the protocol.

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

absl::StatusOr<File> Open(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    const std::string why = base::StrCat("cannot open ", path, ": ", std::strerror(errno));
    if (errno == ENOENT) return base::WithReason(absl::NotFoundError(why), "FILE");
    return base::WithReason(absl::InvalidArgumentError(why), "FILE");
  }
  return file;
}

// Reads the next chunk; it is empty at the end of the file.
absl::Status Read(std::FILE* file, const std::string& path, std::string& chunk) {
  chunk.resize(kChunkBytes);
  chunk.resize(std::fread(chunk.data(), 1, kChunkBytes, file));
  if (std::ferror(file)) {
    return base::WithReason(absl::InvalidArgumentError(base::StrCat("cannot read ", path)), "FILE");
  }
  return absl::OkStatus();
}

// One upload: the caller's messages, files in chunks, then their SHA-256. Stops writing when the server ends the call
// early: Finish() then returns the server's status, which has the cause.
template <typename Message>
class Upload {
 public:
  Upload(grpc::ClientContext& context, std::unique_ptr<grpc::ClientWriter<Message>> writer, std::int64_t total,
         const OnProgress& progress)
      : context_(context), writer_(std::move(writer)), total_(total), progress_(progress) {}

  void Write(const Message& message) { ended_ = ended_ || !writer_->Write(message); }

  // Sends the bytes after the first `skip`, which arrived earlier but count in the SHA-256. A local error ends the
  // call.
  absl::Status SendFile(const std::string& path, std::int64_t size, std::int64_t skip) {
    absl::Status status = Send(path, size, skip);
    if (status.ok()) return status;
    context_.TryCancel();
    static_cast<void>(writer_->Finish());
    return status;
  }

  absl::Status Finish() {
    if (!ended_) {
      Message message;
      message.mutable_finish()->set_sha256(digest_.HexDigest());
      static_cast<void>(writer_->Write(message));
      writer_->WritesDone();
    }
    return FromGrpc(writer_->Finish());
  }

 private:
  absl::Status Send(const std::string& path, std::int64_t size, std::int64_t skip) {
    if (ended_) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(File file, Open(path));
    std::int64_t sent = 0;
    std::string chunk;
    while (true) {
      NIBBLE_RETURN_IF_ERROR(Read(file.get(), path, chunk));
      if (chunk.empty()) break;
      const auto bytes = static_cast<std::int64_t>(chunk.size());
      sent += bytes;
      if (sent > size) break;
      digest_.Update(chunk);
      if (sent > skip) {
        if (const std::int64_t fresh = sent - skip; fresh < bytes)
          chunk.erase(0, static_cast<std::size_t>(bytes - fresh));
        Message message;
        message.set_chunk(std::move(chunk));
        Write(message);
        if (ended_) return absl::OkStatus();
      }
      done_ += bytes;
      if (progress_) progress_("upload", done_, total_);
    }
    if (sent == size) return absl::OkStatus();
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat(path, " changed during the upload: its size was ", size, " bytes")),
        "FILE");
  }

  grpc::ClientContext& context_;
  const std::unique_ptr<grpc::ClientWriter<Message>> writer_;
  const std::int64_t total_;
  const OnProgress& progress_;
  base::Sha256 digest_;
  std::int64_t done_ = 0;
  bool ended_ = false;
};

// Whether another stream may complete the upload: the connection was lost, another stream took over the upload or is
// finishing it (ABORTED), the server ended the stream because of its age (if the client set no deadline), it no longer
// has the upload (reason UPLOAD), or it has a different number of bytes than this client expected.
bool CanResume(const absl::Status& status, const ClientOptions& options) {
  if (absl::IsUnavailable(status) || absl::IsAborted(status)) return true;
  if (absl::IsDeadlineExceeded(status)) return options.long_deadline == absl::InfiniteDuration();
  const auto metadata = base::ReasonMetadata(status);
  const auto field = metadata.find("field");
  return base::Reason(status) == "UPLOAD" || (field != metadata.end() && field->second == "header.resume_offset");
}

}  // namespace

absl::StatusOr<v1::Dataset> Client::UploadDataset(const std::string& path, v1::UploadDatasetHeader header,
                                                  const OnProgress& progress) {
  std::int64_t size = 0;
  {
    NIBBLE_ASSIGN_OR_RETURN(File file, Open(path));
    if (std::fseek(file.get(), 0, SEEK_END) != 0 || (size = std::ftell(file.get())) < 0 ||
        size == std::numeric_limits<long>::max()) {  // What ftell returns for a directory.
      return base::WithReason(absl::InvalidArgumentError(base::StrCat(path, " is not a readable file")), "FILE");
    }
  }
  header.set_size_bytes(size);
  const bool resumed = header.has_resume_offset();
  if (header.upload_id().empty()) header.set_upload_id(base::NewId("upload"));
  v1::Dataset dataset;
  const absl::Status status = RetryUpload(header.upload_id(), resumed, [&](const v1::Upload& arrived) -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    dataset.Clear();
    header.set_resume_offset(arrived.committed_bytes());
    Upload<v1::UploadDatasetRequest> upload(context, stubs_->datasets->UploadDataset(&context, &dataset), size,
                                            progress);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = header;
    upload.Write(message);
    NIBBLE_RETURN_IF_ERROR(upload.SendFile(path, size, arrived.committed_bytes()));
    return upload.Finish();
  });
  if (!status.ok()) return status;
  return dataset;
}

absl::StatusOr<v1::UploadModelResponse> Client::UploadModel(v1::UploadModelHeader header,
                                                            const std::vector<FileToSend>& files,
                                                            const OnProgress& progress) {
  std::int64_t total = 0;
  for (const FileToSend& file : files) total += file.size_bytes;
  header.set_size_bytes(total);
  const bool resumed = header.has_resume_offset();
  if (header.upload_id().empty()) header.set_upload_id(base::NewId("upload"));
  v1::UploadModelResponse response;
  const absl::Status status = RetryUpload(header.upload_id(), resumed, [&](const v1::Upload& arrived) -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    response.Clear();
    header.set_resume_offset(arrived.committed_bytes());
    Upload<v1::UploadModelRequest> upload(context, stubs_->models->UploadModel(&context, &response), total, progress);
    v1::UploadModelRequest message;
    *message.mutable_header() = header;
    upload.Write(message);
    std::int64_t skip = arrived.committed_bytes();
    std::int32_t opened = 0;
    for (const FileToSend& file : files) {
      // A partly sent file continues with its missing chunks.
      if (opened++ >= arrived.num_files()) {
        message.mutable_file()->set_path(file.name);
        message.mutable_file()->set_size_bytes(file.size_bytes);
        upload.Write(message);
      }
      NIBBLE_RETURN_IF_ERROR(upload.SendFile(file.local_path, file.size_bytes, std::min(skip, file.size_bytes)));
      skip -= std::min(skip, file.size_bytes);
    }
    return upload.Finish();
  });
  if (!status.ok()) return status;
  return response;
}

absl::Status Client::RetryUpload(const std::string& id, bool resumed,
                                 const std::function<absl::Status(const v1::Upload& arrived)>& stream) {
  v1::GetUploadRequest request;
  request.set_upload_id(id);
  v1::Upload arrived;
  if (resumed) {
    auto found = Call(&v1::UploadService::Stub::GetUpload, request);
    if (!found.ok()) return found.status();
    if (found->committed_bytes() > 0) arrived = *std::move(found);  // offset 0 begins a new upload, as below
  }
  absl::Duration wait = options_.first_wait;
  absl::Status unknown;  // why it is not known which bytes have arrived; Ok if it is known
  for (int attempt = 1;; ++attempt) {
    absl::Status status = unknown.ok() ? stream(arrived) : unknown;
    if (!CanResume(status, options_) || attempt >= options_.attempts) return status;
    absl::SleepFor(std::min(RetryDelay(status).value_or(wait), options_.longest_wait));
    wait = std::min(wait * 2, options_.longest_wait);
    auto found = Call(&v1::UploadService::Stub::GetUpload, request);
    // All bytes have arrived and the server is writing them; the result is known only afterwards.
    while (found.ok() && found->state() == v1::UPLOAD_STATE_FINISHING) {
      absl::SleepFor(options_.longest_wait);
      found = Call(&v1::UploadService::Stub::GetUpload, request);
    }
    // A server without GetUpload (Unimplemented) is treated like a server that has lost this upload (NotFound).
    const bool none = absl::IsNotFound(found.status()) || absl::IsUnimplemented(found.status());
    unknown = none ? absl::OkStatus() : found.status();
    if (found.ok()) {
      if (found->committed_bytes() > arrived.committed_bytes()) {
        attempt = 0;  // only attempts without progress count
        wait = options_.first_wait;
      }
      arrived = *std::move(found);
      if (arrived.committed_bytes() == 0) arrived.Clear();  // offset 0 begins a new upload, which has no open file
    } else if (unknown.ok()) {
      arrived.Clear();  // the server has no such upload: begin again
    }
  }
}

}  // namespace nibble::client
