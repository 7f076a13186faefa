#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/sha256.h"
#include "server/rpc/upload_table.h"
#include "server/store/upload.h"

namespace nibble::rpc {

// What has arrived of a model: its files, one after the other. One thread.
class UploadedModel final : public UploadContent {
 public:
  explicit UploadedModel(std::unique_ptr<store::Upload> upload) : upload_(std::move(upload)) {}

  std::int32_t num_files() const override { return static_cast<std::int32_t>(files_.size() + (file_.has_value() ? 1 : 0)); }
  const std::string& directory() const { return upload_->directory(); }

  // The file before must be whole. Errors: InvalidArgument (FIELD_VIOLATION), ResourceExhausted (UPLOAD_TOO_LARGE).
  absl::Status BeginFile(const v1::FileEntry& file);
  // Of the open file. Asks `stream` before it takes the bytes. Errors: those of UploadTable::Stream::Charge, InvalidArgument
  // (FIELD_VIOLATION), ResourceExhausted (UPLOAD_TOO_LARGE, DISK_FULL).
  absl::Status Append(std::string_view chunk, UploadTable::Stream& stream);
  // The last file must be whole, and `sha256` that of all bytes. The same again where it was finished before.
  absl::Status Finish(const std::string& sha256);
  // Of all files that are whole, with their digests.
  const std::vector<v1::FileEntry>& files() const { return files_; }
  bool finished() const { return !sha256_.empty(); }

 private:
  absl::Status EndFile();

  const std::unique_ptr<store::Upload> upload_;
  std::optional<v1::FileEntry> file_;  // that is open
  std::vector<v1::FileEntry> files_;
  std::int64_t received_ = 0;  // of the open file
  base::Sha256 file_digest_;
  base::Sha256 digest_;
  std::string sha256_;  // of all, once it has finished
};

}  // namespace nibble::rpc
