// Downloads files. The server is untrusted: paths must stay below the directory, sizes and digests must match.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/stubs.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

bool SafePath(const std::string& path) {
  if (path.empty() || path.size() > 255 || path.front() == '/' || path.find('\\') != std::string::npos) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20) return false;
  }
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

absl::Status Broken(std::string_view what) { return absl::DataLossError(base::StrCat("malformed response: ", what)); }

// Writes one file after the other, each under a temporary name until its digest matches.
class Receiver {
 public:
  explicit Receiver(const std::string& directory) : directory_(directory) {}
  ~Receiver() { Drop(); }

  absl::Status Begin(const v1::FileEntry& entry) {
    NIBBLE_RETURN_IF_ERROR(End());
    if (!SafePath(entry.path())) return Broken(base::StrCat("unsafe file name: ", entry.path()));
    if (!seen_.insert(entry.path()).second) return Broken(base::StrCat("duplicate file ", entry.path()));
    if (entry.size_bytes() < 0) return Broken(base::StrCat(entry.path(), " has a negative size"));
    entry_ = entry;
    path_ = base::JoinPath(directory_, entry.path());
    NIBBLE_RETURN_IF_ERROR(files().CreateDirectories(std::filesystem::path(path_).parent_path().string()));
    NIBBLE_ASSIGN_OR_RETURN(file_, files().Create(base::StrCat(path_, ".partial")));
    digest_ = base::Sha256();
    bytes_ = 0;
    return absl::OkStatus();
  }

  absl::Status Chunk(const std::string& chunk) {
    if (file_ == nullptr) return Broken("a chunk before any file");
    bytes_ += static_cast<std::int64_t>(chunk.size());
    if (bytes_ > entry_.size_bytes()) return Broken(base::StrCat(entry_.path(), " is longer than announced"));
    digest_.Update(chunk);
    all_.Update(chunk);
    return file_->Append(chunk);
  }

  absl::Status Finish(const std::string& sha256) {
    NIBBLE_RETURN_IF_ERROR(End());
    if (all_.HexDigest() != sha256)
      return absl::DataLossError("SHA-256 of the received files differs from the server's");
    return absl::OkStatus();
  }

  std::vector<v1::FileEntry> TakeReceived() { return std::move(received_); }

 private:
  static base::FileSystem& files() { return base::RealFileSystem(); }

  absl::Status End() {
    if (file_ == nullptr) return absl::OkStatus();
    if (bytes_ != entry_.size_bytes()) return Broken(base::StrCat(entry_.path(), " is shorter than announced"));
    const std::string sha256 = digest_.HexDigest();
    if (!entry_.sha256().empty() && entry_.sha256() != sha256) {
      return absl::DataLossError(base::StrCat(entry_.path(), ": got SHA-256 ", sha256, ", wanted ", entry_.sha256()));
    }
    NIBBLE_RETURN_IF_ERROR(file_->Sync());
    NIBBLE_RETURN_IF_ERROR(file_->Close());
    file_.reset();
    NIBBLE_RETURN_IF_ERROR(files().Rename(base::StrCat(path_, ".partial"), path_));
    entry_.set_sha256(sha256);
    received_.push_back(entry_);
    return absl::OkStatus();
  }

  void Drop() {
    if (file_ == nullptr) return;
    file_.reset();
    static_cast<void>(files().RemoveAll(base::StrCat(path_, ".partial")));
  }

  const std::string directory_;
  std::set<std::string> seen_;
  v1::FileEntry entry_;
  std::string path_;
  std::unique_ptr<base::WritableFile> file_;
  base::Sha256 digest_;
  base::Sha256 all_;
  std::int64_t bytes_ = 0;
  std::vector<v1::FileEntry> received_;
};

}  // namespace

absl::StatusOr<std::int64_t> Client::DownloadDataset(const std::string& name, const std::string& path,
                                                     const OnProgress& progress) {
  base::FileSystem& files = base::RealFileSystem();
  const std::string partial = base::StrCat(path, ".partial");
  std::int64_t done = 0;
  const absl::Status status = Retry([&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    v1::DownloadDatasetRequest request;
    request.set_name(name);
    NIBBLE_ASSIGN_OR_RETURN(const auto file, files.Create(partial));
    auto reader = stubs_->datasets->DownloadDataset(&context, request);
    v1::DownloadDatasetResponse message;
    absl::Status ours = absl::OkStatus();
    done = 0;
    while (ours.ok() && reader->Read(&message)) {
      ours = file->Append(message.chunk());
      done += static_cast<std::int64_t>(message.chunk().size());
      if (progress) progress("download", done, 0);
    }
    if (!ours.ok()) context.TryCancel();
    const absl::Status theirs = FromGrpc(reader->Finish());
    if (!ours.ok()) return ours;
    NIBBLE_RETURN_IF_ERROR(theirs);
    NIBBLE_RETURN_IF_ERROR(file->Sync());
    NIBBLE_RETURN_IF_ERROR(file->Close());
    return files.Rename(partial, path);
  });
  if (status.ok()) return done;
  files.RemoveAll(partial).IgnoreError();
  return status;
}

absl::StatusOr<std::vector<v1::FileEntry>> Client::DownloadArtifact(const std::string& artifact_id,
                                                                    const std::string& directory,
                                                                    const OnProgress& progress) {
  NIBBLE_RETURN_IF_ERROR(base::RealFileSystem().CreateDirectories(directory));
  std::vector<v1::FileEntry> received;
  const absl::Status status = Retry([&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    v1::DownloadArtifactRequest request;
    request.set_artifact_id(artifact_id);
    auto reader = stubs_->models->DownloadArtifact(&context, request);
    Receiver receiver(directory);
    v1::DownloadArtifactResponse message;
    absl::Status ours = absl::OkStatus();
    bool finished = false;
    std::int64_t done = 0;
    while (ours.ok() && reader->Read(&message)) {
      if (finished) {
        ours = Broken("a message after the last");
      } else if (message.has_file()) {
        ours = receiver.Begin(message.file());
      } else if (message.message_case() == v1::DownloadArtifactResponse::kChunk) {
        ours = receiver.Chunk(message.chunk());
        done += static_cast<std::int64_t>(message.chunk().size());
        if (progress) progress("download", done, 0);
      } else if (message.has_finish()) {
        ours = receiver.Finish(message.finish().sha256());
        finished = true;
      } else {
        ours = Broken("an empty message");
      }
    }
    if (!ours.ok()) context.TryCancel();
    const absl::Status theirs = FromGrpc(reader->Finish());
    if (!ours.ok()) return ours;
    NIBBLE_RETURN_IF_ERROR(theirs);
    if (!finished) return Broken("the files ended without their digest");
    received = receiver.TakeReceived();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return received;
}

}  // namespace nibble::client
