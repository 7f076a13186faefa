// File access with durable, atomic writes. Tests replace the FileSystem to simulate faults of the disk.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::base {

// A file open for writing. One thread.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes; bytes that were not synced may be lost
  virtual absl::Status Append(std::string_view bytes) = 0;
  // fsync. After an error, abandon the file: never retry on the same descriptor.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// Thread-safe. Errors: NotFound, InvalidArgument (a path that cannot be used), AlreadyExists, ResourceExhausted
// (DISK_FULL; without a reason: too many open files), PermissionDenied, Internal.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;  // truncates; mode 0640
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) = 0;  // creates
  virtual absl::StatusOr<std::string> Read(const std::string& path,
                                           std::uint64_t max_bytes) = 0;  // InvalidArgument if larger
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  virtual absl::Status CreateDirectories(const std::string& path) = 0;                 // mode 0750
  virtual absl::Status RemoveAll(const std::string& path) = 0;                         // OK if absent
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;  // names, sorted
  virtual absl::StatusOr<std::uint64_t> Size(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) = 0;
};

FileSystem& RealFileSystem();

// Writes and syncs a temporary file in the same directory, renames it and syncs the directory. Once this returns OK,
// the bytes survive a power cut. Until the rename, the old file stays.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view bytes);

std::string JoinPath(std::string_view directory, std::string_view name);

// A file mapped read-only. Thread-compatible; the bytes live as long as the object.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace nibble::base
