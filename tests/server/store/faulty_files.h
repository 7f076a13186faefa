#pragma once
#include <memory>
#include <string>
#include <utility>

#include "server/base/files.h"

namespace nibble::store {

// The real file system until operation number `fail_at` (from 1) that changes the disk; that one and all after it fail, as
// after a power cut or on a full disk. One thread.
class FaultyFiles : public base::FileSystem {
 public:
  explicit FaultyFiles(int fail_at) : fail_at_(fail_at) {}
  int operations() const { return operations_; }

  absl::StatusOr<std::unique_ptr<base::WritableFile>> Create(const std::string& path) override {
    if (Fails()) return Error();
    return Wrap(real_.Create(path));
  }
  absl::StatusOr<std::unique_ptr<base::WritableFile>> OpenForAppend(const std::string& path) override {
    if (Fails()) return Error();
    return Wrap(real_.OpenForAppend(path));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Fails() ? Error() : real_.Rename(from, to);
  }
  absl::Status SyncDirectory(const std::string& path) override { return Fails() ? Error() : real_.SyncDirectory(path); }
  absl::Status CreateDirectories(const std::string& path) override {
    return Fails() ? Error() : real_.CreateDirectories(path);
  }
  absl::Status RemoveAll(const std::string& path) override { return Fails() ? Error() : real_.RemoveAll(path); }
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max) override { return real_.Read(path, max); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return real_.List(path); }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override { return real_.Size(path); }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override { return real_.FreeBytes(path); }

 private:
  class File : public base::WritableFile {
   public:
    File(FaultyFiles& owner, std::unique_ptr<base::WritableFile> file) : owner_(owner), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      if (!owner_.Fails()) return file_->Append(bytes);
      (void)file_->Append(bytes.substr(0, bytes.size() / 2));  // A short write.
      return Error();
    }
    absl::Status Sync() override { return owner_.Fails() ? Error() : file_->Sync(); }
    absl::Status Close() override { return owner_.Fails() ? Error() : file_->Close(); }

   private:
    FaultyFiles& owner_;
    std::unique_ptr<base::WritableFile> file_;
  };

  static absl::Status Error() { return absl::InternalError("injected"); }
  bool Fails() { return ++operations_ >= fail_at_; }
  absl::StatusOr<std::unique_ptr<base::WritableFile>> Wrap(absl::StatusOr<std::unique_ptr<base::WritableFile>> file) {
    if (!file.ok()) return file.status();
    return std::unique_ptr<base::WritableFile>(std::make_unique<File>(*this, *std::move(file)));
  }

  base::FileSystem& real_ = base::RealFileSystem();
  const int fail_at_;
  int operations_ = 0;
};

}  // namespace nibble::store
