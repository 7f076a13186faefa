#include "server/base/failpoint_files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::base {

namespace {

enum class Action { kBefore, kAfter, kStop, kFull };
constexpr const char* kActions[] = {"before", "after", "stop", "full"};

class Trap {
 public:
  Trap(std::string part, std::int64_t number, Action action) : part_(std::move(part)), number_(number), action_(action) {}

  template <typename Operation>
  auto Around(const std::string& path, Operation operation) -> decltype(operation()) {
    if (path.find(part_) == std::string::npos) return operation();
    const std::int64_t number = ++count_;
    if (action_ == Action::kFull) {
      if (number < number_) return operation();
      return WithReason(absl::ResourceExhaustedError(StrCat("write ", path, ": No space left on device")), "DISK_FULL");
    }
    if (number != number_) return operation();
    if (action_ == Action::kBefore) ::kill(::getpid(), SIGKILL);
    if (action_ == Action::kStop) ::kill(::getpid(), SIGSTOP);
    auto result = operation();
    if (action_ == Action::kAfter) ::kill(::getpid(), SIGKILL);
    return result;
  }

 private:
  const std::string part_;
  const std::int64_t number_;
  const Action action_;
  std::atomic<std::int64_t> count_{0};
};

class FailpointFile : public WritableFile {
 public:
  FailpointFile(Trap& trap, std::string path, std::unique_ptr<WritableFile> file)
      : trap_(trap), path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Append(std::string_view bytes) override {
    return trap_.Around(path_, [&] { return file_->Append(bytes); });
  }
  absl::Status Sync() override {
    return trap_.Around(path_, [&] { return file_->Sync(); });
  }
  absl::Status Close() override {
    return trap_.Around(path_, [&] { return file_->Close(); });
  }

 private:
  Trap& trap_;
  const std::string path_;
  const std::unique_ptr<WritableFile> file_;
};

class FailpointFiles : public FileSystem {
 public:
  FailpointFiles(FileSystem& real, std::string part, std::int64_t number, Action action)
      : real_(real), trap_(std::move(part), number, action) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return Wrap(path, trap_.Around(path, [&] { return real_.Create(path); }));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return Wrap(path, trap_.Around(path, [&] { return real_.OpenForAppend(path); }));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return trap_.Around(to, [&] { return real_.Rename(from, to); });
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return trap_.Around(path, [&] { return real_.SyncDirectory(path); });
  }
  absl::Status CreateDirectories(const std::string& path) override {
    return trap_.Around(path, [&] { return real_.CreateDirectories(path); });
  }
  absl::Status RemoveAll(const std::string& path) override {
    return trap_.Around(path, [&] { return real_.RemoveAll(path); });
  }
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max) override { return real_.Read(path, max); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return real_.List(path); }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override { return real_.Size(path); }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override { return real_.FreeBytes(path); }

 private:
  absl::StatusOr<std::unique_ptr<WritableFile>> Wrap(const std::string& path,
                                                     absl::StatusOr<std::unique_ptr<WritableFile>> file) {
    if (!file.ok()) return file.status();
    return std::unique_ptr<WritableFile>(std::make_unique<FailpointFile>(trap_, path, *std::move(file)));
  }

  FileSystem& real_;
  Trap trap_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> MakeFailpointFiles(FileSystem& real, std::string_view spec) {
  const absl::Status wrong = absl::InvalidArgumentError(StrCat("failpoint \"", spec, "\", wanted PART:N:ACTION"));
  const std::size_t last = spec.rfind(':');
  const std::size_t middle = last == std::string_view::npos || last == 0 ? last : spec.rfind(':', last - 1);
  if (middle == std::string_view::npos || middle == 0 || middle == last) return wrong;
  const std::string_view digits = spec.substr(middle + 1, last - middle - 1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) return wrong;
  for (int action = 0; action < 4; ++action) {
    if (spec.substr(last + 1) != kActions[action]) continue;
    return std::unique_ptr<FileSystem>(std::make_unique<FailpointFiles>(real, std::string(spec.substr(0, middle)), number,
                                                                        static_cast<Action>(action)));
  }
  return wrong;
}

}  // namespace nibble::base
