// A FileSystem decorator for code that times or counts file operations, or makes them fail.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/files.h"

namespace nibble::base {

// Passes every operation except List, Size, Exists and FreeBytes to a Hook, which decides whether `real` runs it:
//   template <typename Work>
//   auto Around(const char* operation, const std::string& path, Work work) -> decltype(work());
//   template <typename Write>
//   absl::Status Append(const std::string& path, std::string_view bytes, Write write);
// operation: "open", "sync", "close", "read", "rename" (path: the new one), "sync_directory", "create_directories",
// "remove". Append is separate so that a hook can cut a write short. `real` must outlive this. As thread-safe as `real`
// and the Hook.
template <typename Hook>
class HookedFiles : public FileSystem {
 public:
  // Constructs the Hook from `hook`.
  template <typename... Args>
  explicit HookedFiles(FileSystem& real, Args&&... hook) : real_(real), hook_(std::forward<Args>(hook)...) {}
  const Hook& hook() const { return hook_; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return Wrap(path, hook_.Around("open", path, [&] { return real_.Create(path); }));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return Wrap(path, hook_.Around("open", path, [&] { return real_.OpenForAppend(path); }));
  }
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) override {
    return hook_.Around("read", path, [&] { return real_.Read(path, max_bytes); });
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return hook_.Around("rename", to, [&] { return real_.Rename(from, to); });
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return hook_.Around("sync_directory", path, [&] { return real_.SyncDirectory(path); });
  }
  absl::Status CreateDirectories(const std::string& path) override {
    return hook_.Around("create_directories", path, [&] { return real_.CreateDirectories(path); });
  }
  absl::Status RemoveAll(const std::string& path) override {
    return hook_.Around("remove", path, [&] { return real_.RemoveAll(path); });
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return real_.List(path); }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override { return real_.Size(path); }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override { return real_.FreeBytes(path); }

 private:
  class File final : public WritableFile {
   public:
    File(Hook& hook, std::string path, std::unique_ptr<WritableFile> file)
        : hook_(hook), path_(std::move(path)), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      return hook_.Append(path_, bytes, [&](std::string_view some) { return file_->Append(some); });
    }
    absl::Status Sync() override {
      return hook_.Around("sync", path_, [&] { return file_->Sync(); });
    }
    absl::Status Close() override {
      return hook_.Around("close", path_, [&] { return file_->Close(); });
    }

   private:
    Hook& hook_;
    const std::string path_;
    const std::unique_ptr<WritableFile> file_;
  };

  absl::StatusOr<std::unique_ptr<WritableFile>> Wrap(const std::string& path,
                                                     absl::StatusOr<std::unique_ptr<WritableFile>> file) {
    if (!file.ok()) return file.status();
    return std::unique_ptr<WritableFile>(std::make_unique<File>(hook_, path, *std::move(file)));
  }

  FileSystem& real_;
  Hook hook_;
};

}  // namespace nibble::base
