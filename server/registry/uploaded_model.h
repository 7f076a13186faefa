#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/base/sha256.h"
#include "server/registry/file_entry.h"
#include "server/registry/upload_table.h"
#include "server/store/upload.h"

namespace nibble::registry {

// The received part of a model: its files, one after the other. One thread.
class UploadedModel final : public UploadContent {
 public:
  explicit UploadedModel(std::unique_ptr<store::Upload> upload) : upload_(std::move(upload)) {}

  std::int32_t num_files() const override {
    return static_cast<std::int32_t>(files_.size() + (file_.has_value() ? 1 : 0));
  }
  const std::string& directory() const { return upload_->directory(); }

  // The previous file must be complete. Errors: InvalidArgument (FIELD_VIOLATION), ResourceExhausted
  // (UPLOAD_TOO_LARGE).
  absl::Status BeginFile(const FileEntry& file);
  // Appends to the open file, after charging the bytes to `stream`. Errors: those of
  // UploadTable::Stream::Charge, InvalidArgument (FIELD_VIOLATION), ResourceExhausted (UPLOAD_TOO_LARGE,
  // DISK_FULL).
  absl::Status Append(std::string_view chunk, UploadTable::Stream& stream);
  // The last file must be complete, and `sha256` the digest of all bytes. Repeating the call gives the same result.
  absl::Status Finish(const std::string& sha256);
  // All complete files, with their digests.
  const std::vector<FileEntry>& files() const { return files_; }
  bool finished() const { return !sha256_.empty(); }

 private:
  absl::Status EndFile();

  const std::unique_ptr<store::Upload> upload_;
  std::optional<FileEntry> file_;  // the open file
  std::vector<FileEntry> files_;
  std::int64_t received_ = 0;  // of the open file
  base::Sha256 file_digest_;
  base::Sha256 digest_;
  std::string sha256_;  // of all bytes; set by Finish
};

}  // namespace nibble::registry
