// The real file system, except that one file has the input as its text, and nothing can be written.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::fuzz {

class OneFileSystem : public base::FileSystem {
 public:
  OneFileSystem(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) override {
    if (path != path_) return base::RealFileSystem().Read(path, max_bytes);
    if (text_.size() > max_bytes) return absl::InvalidArgumentError("too large");
    return text_;
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return base::RealFileSystem().List(path);
  }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override {
    if (path == path_) return text_.size();
    return base::RealFileSystem().Size(path);
  }
  bool Exists(const std::string& path) override { return path == path_ || base::RealFileSystem().Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string&) override { return 0; }

  absl::StatusOr<std::unique_ptr<base::WritableFile>> Create(const std::string&) override { return Refused(); }
  absl::StatusOr<std::unique_ptr<base::WritableFile>> OpenForAppend(const std::string&) override { return Refused(); }
  absl::Status Rename(const std::string&, const std::string&) override { return Refused(); }
  absl::Status SyncDirectory(const std::string&) override { return Refused(); }
  absl::Status CreateDirectories(const std::string&) override { return Refused(); }
  absl::Status RemoveAll(const std::string&) override { return Refused(); }

 private:
  static absl::Status Refused() { return absl::PermissionDeniedError("this file system is read-only"); }

  const std::string path_;
  const std::string text_;
};

}  // namespace nibble::fuzz
