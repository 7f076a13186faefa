// Files to the server: chunks of at most 1 MiB, and their SHA-256 at the end.
#include <cerrno>
#include <cstdio>
#include <cstring>

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

// Sends one file's chunks. False from `send` means that the server ended the call: its status tells more than we know
// here.
absl::Status SendFile(const std::string& path, std::int64_t size, base::Sha256& digest, bool& ended,
                      const std::function<bool(std::string&&)>& send, const std::function<void(std::int64_t)>& sent) {
  NIBBLE_ASSIGN_OR_RETURN(File file, Open(path));
  std::int64_t total = 0;
  std::string chunk;
  while (true) {
    NIBBLE_RETURN_IF_ERROR(Read(file.get(), path, chunk));
    if (chunk.empty()) break;
    const auto bytes = static_cast<std::int64_t>(chunk.size());
    total += bytes;
    if (total > size) break;
    digest.Update(chunk);
    if (!send(std::move(chunk))) {
      ended = true;
      return absl::OkStatus();
    }
    sent(bytes);
  }
  if (total != size) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat(path, " changed while it was sent: it had ", size, " bytes")), "FILE");
  }
  return absl::OkStatus();
}

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
  absl::Status status = Retry([&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    dataset.Clear();
    auto writer = stubs_->datasets->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = header;
    bool ended = !writer->Write(message);
    base::Sha256 digest;
    std::int64_t done = 0;
    if (!ended) {
      const absl::Status local = SendFile(
          path, size, digest, ended,
          [&](std::string&& chunk) {
            message.set_chunk(std::move(chunk));
            return writer->Write(message);
          },
          [&](std::int64_t bytes) {
            done += bytes;
            if (progress) progress("upload", done, size);
          });
      if (!local.ok()) {
        context.TryCancel();
        static_cast<void>(writer->Finish());
        return local;
      }
    }
    if (!ended) {
      message.mutable_finish()->set_sha256(digest.HexDigest());
      static_cast<void>(writer->Write(message));
      writer->WritesDone();
    }
    return FromGrpc(writer->Finish());
  });
  if (!status.ok()) return status;
  return dataset;
}

absl::StatusOr<v1::UploadModelResponse> Client::UploadModel(const std::string& name,
                                                            const std::vector<FileToSend>& files,
                                                            const OnProgress& progress) {
  absl::StatusOr<v1::UploadModelResponse> response = absl::InternalError("not called");
  const absl::Status status = Retry([&] {
    response = UploadModelOnce(name, files, progress);
    return response.status();
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::UploadModelResponse> Client::UploadModelOnce(const std::string& name,
                                                                const std::vector<FileToSend>& files,
                                                                const OnProgress& progress) {
  std::int64_t total = 0;
  for (const FileToSend& file : files) total += file.size_bytes;
  grpc::ClientContext context;
  SetDeadline(context, options_.long_deadline);
  v1::UploadModelResponse response;
  auto writer = stubs_->models->UploadModel(&context, &response);
  v1::UploadModelRequest message;
  message.mutable_header()->set_name(name);
  message.mutable_header()->set_size_bytes(total);
  bool ended = !writer->Write(message);
  base::Sha256 digest;
  std::int64_t done = 0;
  for (const FileToSend& file : files) {
    if (ended) break;
    message.mutable_file()->set_path(file.name);
    message.mutable_file()->set_size_bytes(file.size_bytes);
    if (!writer->Write(message)) {
      ended = true;
      break;
    }
    const absl::Status local = SendFile(
        file.local_path, file.size_bytes, digest, ended,
        [&](std::string&& chunk) {
          message.set_chunk(std::move(chunk));
          return writer->Write(message);
        },
        [&](std::int64_t bytes) {
          done += bytes;
          if (progress) progress("upload", done, total);
        });
    if (!local.ok()) {
      context.TryCancel();
      static_cast<void>(writer->Finish());
      return local;
    }
  }
  if (!ended) {
    message.mutable_finish()->set_sha256(digest.HexDigest());
    static_cast<void>(writer->Write(message));
    writer->WritesDone();
  }
  NIBBLE_RETURN_IF_ERROR(FromGrpc(writer->Finish()));
  return response;
}

}  // namespace nibble::client
