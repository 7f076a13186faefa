#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

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
  // Refused (ResourceExhausted, DISK_FULL) when a chunk would leave less than this free: a full disk cannot even be
  // cleaned up by the database.
  std::uint64_t min_free_bytes = 256ull << 20;
};

// Files that a client streams, below uploads/ID/, which goes away with this object. One thread.
class Upload {
 public:
  static absl::StatusOr<std::unique_ptr<Upload>> Begin(base::FileSystem& files, const Layout& layout, UploadLimits limits);
  ~Upload();

  const std::string& directory() const { return directory_; }
  std::uint64_t bytes() const { return total_bytes_; }

  // `name` must be one plain file name (base::CheckName). One file is open at a time.
  absl::Status BeginFile(std::string_view name);
  absl::Status Append(std::string_view chunk);
  // InvalidArgument (CHECKSUM_MISMATCH) when the bytes are not those of `sha256` (64 hex digits).
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
