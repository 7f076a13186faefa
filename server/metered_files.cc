#include "server/metered_files.h"

#include <utility>

#include "server/base/error.h"
#include "server/rpc/status.h"

namespace nibble {

namespace {

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

bool IsFault(const absl::Status& status) {
  return !status.ok() && !absl::IsNotFound(status) && !absl::IsInvalidArgument(status) && !absl::IsAlreadyExists(status);
}

}  // namespace

template <typename Work>
auto MeteredFiles::Timed(const char* operation, Work work) {
  const absl::Duration began = clock_.Monotonic();
  auto result = work();
  metrics_.StoreOperation(operation, absl::ToDoubleSeconds(clock_.Monotonic() - began));
  const absl::Status& status = StatusOf(result);
  if (IsFault(status)) {
    const std::string reason = base::Reason(status);
    metrics_.StoreError(reason.empty() ? rpc::CodeName(status.code()) : reason);
  }
  return result;
}

class MeteredFiles::File final : public base::WritableFile {
 public:
  File(MeteredFiles& owner, std::unique_ptr<base::WritableFile> file) : owner_(owner), file_(std::move(file)) {}
  absl::Status Append(std::string_view bytes) override {
    return owner_.Timed("append", [&] { return file_->Append(bytes); });
  }
  absl::Status Sync() override {
    return owner_.Timed("sync", [&] { return file_->Sync(); });
  }
  absl::Status Close() override { return file_->Close(); }

 private:
  MeteredFiles& owner_;
  const std::unique_ptr<base::WritableFile> file_;
};

absl::StatusOr<std::unique_ptr<base::WritableFile>> MeteredFiles::Create(const std::string& path) {
  auto file = Timed("open", [&] { return files_.Create(path); });
  if (!file.ok()) return file.status();
  return std::unique_ptr<base::WritableFile>(std::make_unique<File>(*this, *std::move(file)));
}

absl::StatusOr<std::unique_ptr<base::WritableFile>> MeteredFiles::OpenForAppend(const std::string& path) {
  auto file = Timed("open", [&] { return files_.OpenForAppend(path); });
  if (!file.ok()) return file.status();
  return std::unique_ptr<base::WritableFile>(std::make_unique<File>(*this, *std::move(file)));
}

absl::StatusOr<std::string> MeteredFiles::Read(const std::string& path, std::uint64_t max_bytes) {
  return Timed("read", [&] { return files_.Read(path, max_bytes); });
}

absl::Status MeteredFiles::Rename(const std::string& from, const std::string& to) {
  return Timed("rename", [&] { return files_.Rename(from, to); });
}

absl::Status MeteredFiles::SyncDirectory(const std::string& path) {
  return Timed("sync_directory", [&] { return files_.SyncDirectory(path); });
}

absl::Status MeteredFiles::CreateDirectories(const std::string& path) {
  return Timed("create_directories", [&] { return files_.CreateDirectories(path); });
}

absl::Status MeteredFiles::RemoveAll(const std::string& path) {
  return Timed("remove", [&] { return files_.RemoveAll(path); });
}

}  // namespace nibble
