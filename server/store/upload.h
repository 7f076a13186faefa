#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/sha256.h"
#include "server/store/layout.h"

namespace nibble::store {

struct UploadLimits {
  std::uint64_t max_file_bytes = 1ull << 30;
  std::uint64_t max_total_bytes = 1ull << 30;
  std::int64_t max_files = 1;
  // A chunk that would leave less than this free is refused (ResourceExhausted, DISK_FULL): on a full disk the database
  // cannot even delete.
  std::uint64_t min_free_bytes = 256ull << 20;
};

// Files that a client streams to uploads/ID/. The destructor removes that directory. One thread.
class Upload {
 public:
  static absl::StatusOr<std::unique_ptr<Upload>> Begin(base::FileSystem& files, const StatePaths& paths,
                                                       UploadLimits limits);
  ~Upload();

  const std::string& directory() const { return directory_; }
  std::uint64_t bytes() const { return total_bytes_; }

  // `name` must be one plain file name (base::CheckName). One file is open at a time.
  absl::Status BeginFile(std::string_view name);
  absl::Status Append(std::string_view chunk);
  // InvalidArgument (CHECKSUM_MISMATCH) if `sha256` (64 hex digits) is not the SHA-256 of the bytes.
  absl::Status FinishFile(std::string_view sha256);

 private:
  Upload(base::FileSystem& files, UploadLimits limits, std::string directory)
      : files_(files), limits_(limits), directory_(std::move(directory)) {}

  base::FileSystem& files_;
  const UploadLimits limits_;
  const std::string directory_;
  std::unique_ptr<base::WritableFile> file_;
  base::Sha256 sha256_;
  std::string file_name_;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
  std::int64_t num_files_ = 0;
};

}  // namespace nibble::store
