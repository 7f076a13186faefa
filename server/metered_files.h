// The disk under the stores, timed and its faults counted: nibble_store_op_duration_seconds, nibble_store_errors_total.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/telemetry/metrics.h"

namespace nibble {

// Operations that change the disk, and reads. What the caller asked wrongly (a file that is not there, one that is too large)
// is no fault of the store. Thread-safe.
class MeteredFiles final : public base::FileSystem {
 public:
  MeteredFiles(base::FileSystem& files, telemetry::Metrics& metrics, base::Clock& clock)
      : files_(files), metrics_(metrics), clock_(clock) {}

  absl::StatusOr<std::unique_ptr<base::WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<base::WritableFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status RemoveAll(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return files_.List(path); }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override { return files_.Size(path); }
  bool Exists(const std::string& path) override { return files_.Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override { return files_.FreeBytes(path); }

 private:
  class File;
  template <typename Work>
  auto Timed(const char* operation, Work work);

  base::FileSystem& files_;
  telemetry::Metrics& metrics_;
  base::Clock& clock_;
};

}  // namespace nibble
