// Files to the server: chunks of at most 1 MiB, and their SHA-256 at the end.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "client/client.h"
#include "client/stubs.h"
#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;  // The contract's limit.

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

// The next chunk; empty at the end.
absl::Status Read(std::FILE* file, const std::string& path, std::string& chunk) {
  chunk.resize(kChunkBytes);
  chunk.resize(std::fread(chunk.data(), 1, kChunkBytes, file));
  if (std::ferror(file)) {
    return base::WithReason(absl::InvalidArgumentError(base::StrCat("cannot read ", path)), "FILE");
  }
  return absl::OkStatus();
}

// One upload: what the caller writes, files in chunks, their SHA-256 at the end. A server that ends the call early is not
// written to any more: its status tells more than we know here.
template <typename Message>
class Upload {
 public:
  Upload(grpc::ClientContext& context, std::unique_ptr<grpc::ClientWriter<Message>> writer, std::int64_t total,
         const OnProgress& progress)
      : context_(context), writer_(std::move(writer)), total_(total), progress_(progress) {}

  void Write(const Message& message) { ended_ = ended_ || !writer_->Write(message); }

  // A local fault ends the call.
  absl::Status SendFile(const std::string& path, std::int64_t size) {
    absl::Status status = Send(path, size);
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
  absl::Status Send(const std::string& path, std::int64_t size) {
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
      Message message;
      message.set_chunk(std::move(chunk));
      Write(message);
      if (ended_) return absl::OkStatus();
      done_ += bytes;
      if (progress_) progress_("upload", done_, total_);
    }
    if (sent == size) return absl::OkStatus();
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat(path, " changed while it was sent: it had ", size, " bytes")), "FILE");
  }

  grpc::ClientContext& context_;
  const std::unique_ptr<grpc::ClientWriter<Message>> writer_;
  const std::int64_t total_;
  const OnProgress& progress_;
  base::Sha256 digest_;
  std::int64_t done_ = 0;
  bool ended_ = false;
};

}  // namespace

absl::StatusOr<v1::Dataset> Client::UploadDataset(const std::string& path, v1::UploadDatasetHeader header,
                                                  const OnProgress& progress) {
  std::int64_t size = 0;
  {
    NIBBLE_ASSIGN_OR_RETURN(File file, Open(path));
    if (std::fseek(file.get(), 0, SEEK_END) != 0 || (size = std::ftell(file.get())) < 0 ||
        size == std::numeric_limits<long>::max()) {  // A directory "ends" there.
      return base::WithReason(absl::InvalidArgumentError(base::StrCat(path, " is not a file that can be read")),
                              "FILE");
    }
  }
  header.set_size_bytes(size);
  v1::Dataset dataset;
  const absl::Status status = Retry([&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    dataset.Clear();
    Upload<v1::UploadDatasetRequest> upload(context, stubs_->datasets->UploadDataset(&context, &dataset), size, progress);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = header;
    upload.Write(message);
    NIBBLE_RETURN_IF_ERROR(upload.SendFile(path, size));
    return upload.Finish();
  });
  if (!status.ok()) return status;
  return dataset;
}

absl::StatusOr<v1::UploadModelResponse> Client::UploadModel(const std::string& name,
                                                            const std::vector<FileToSend>& files,
                                                            const OnProgress& progress) {
  std::int64_t total = 0;
  for (const FileToSend& file : files) total += file.size_bytes;
  v1::UploadModelResponse response;
  const absl::Status status = Retry([&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    response.Clear();
    Upload<v1::UploadModelRequest> upload(context, stubs_->models->UploadModel(&context, &response), total, progress);
    v1::UploadModelRequest message;
    message.mutable_header()->set_name(name);
    message.mutable_header()->set_size_bytes(total);
    upload.Write(message);
    for (const FileToSend& file : files) {
      message.mutable_file()->set_path(file.name);
      message.mutable_file()->set_size_bytes(file.size_bytes);
      upload.Write(message);
      NIBBLE_RETURN_IF_ERROR(upload.SendFile(file.local_path, file.size_bytes));
    }
    return upload.Finish();
  });
  if (!status.ok()) return status;
  return response;
}

}  // namespace nibble::client
