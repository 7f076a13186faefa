#include "server/store/trainer_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/checkpoints.h"

namespace nibble::store {

namespace {

constexpr std::size_t kBlockBytes = 64 << 10;  // of a search for line ends

absl::Status CannotRead(int error) {
  const std::string what = base::StrCat("cannot read the trainer's log: ", std::strerror(error));
  if (error == EMFILE || error == ENFILE) return absl::ResourceExhaustedError(what);
  return absl::InternalError(what);
}

}  // namespace

absl::Status NoAttempt(const std::string& job, std::int64_t attempt, const std::string& why) {
  return base::WithReason(absl::NotFoundError(base::StrCat("attempt ", attempt, " of job ", job, " ", why)), "ATTEMPT");
}

// An open log or folder. Without a descriptor: a folder that could not be opened, or a log that does not exist yet.
class TrainerLog::File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int descriptor() const { return descriptor_; }

  absl::StatusOr<std::string> Read(std::int64_t offset, std::size_t max_bytes) const {
    std::string bytes;
    if (descriptor_ < 0) return bytes;
    bytes.resize(max_bytes);
    std::size_t got = 0;
    while (got < max_bytes) {
      const ssize_t n = ::pread(descriptor_, bytes.data() + got, max_bytes - got, offset + static_cast<off_t>(got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return CannotRead(errno);
      if (n == 0) break;
      got += static_cast<std::size_t>(n);
    }
    bytes.resize(got);
    return bytes;
  }

 private:
  int descriptor_;
};

absl::StatusOr<TrainerLog::File> TrainerLog::Open() const {
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  // The folders from the job's on, each opened below the last one.
  const auto open_folder = [&](const std::string& path) {
    File folder(::open(jobs_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const absl::string_view name : absl::StrSplit(path.substr(jobs_.size()), '/', absl::SkipEmpty())) {
      if (folder.descriptor() < 0) break;
      folder = File(::openat(folder.descriptor(), std::string(name).c_str(), kFolder));
    }
    return folder;
  };
  File folder = open_folder(LostDirectory(directory_));
  if (folder.descriptor() < 0) folder = open_folder(directory_);
  const int error = errno;  // if the folder was not opened
  // LoseAttempt may have renamed it between the two.
  if (folder.descriptor() < 0) folder = open_folder(LostDirectory(directory_));
  if (folder.descriptor() < 0) {
    const bool absent = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ESTALE;
    if (!absent) return CannotRead(error);
    return NoAttempt(job_, attempt_, "has no files: it never began, or they were removed");
  }
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  File file(::openat(folder.descriptor(), kTrainerLogFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.descriptor() < 0 && errno == ENOENT) return file;
  struct stat info{};
  const bool opened = file.descriptor() >= 0 && ::fstat(file.descriptor(), &info) == 0;
  if (!opened && errno != ELOOP) return CannotRead(errno);
  if (!opened || !S_ISREG(info.st_mode)) return NoAttempt(job_, attempt_, "has a log that is not a regular file");
  return file;
}

absl::StatusOr<std::int64_t> TrainerLog::Size() const {
  NIBBLE_ASSIGN_OR_RETURN(const File file, Open());
  if (file.descriptor() < 0) return 0;
  struct stat info{};
  if (::fstat(file.descriptor(), &info) != 0) return CannotRead(errno);
  return static_cast<std::int64_t>(info.st_size);
}

absl::StatusOr<std::string> TrainerLog::Read(std::int64_t offset, std::size_t max_bytes) const {
  NIBBLE_ASSIGN_OR_RETURN(const File file, Open());
  return file.Read(offset, max_bytes);
}

absl::StatusOr<std::int64_t> TrainerLog::FindTail(std::int64_t size, std::int64_t lines) const {
  if (lines == 0) return size;
  NIBBLE_ASSIGN_OR_RETURN(const File file, Open());
  const std::int64_t first = std::max<std::int64_t>(0, size - kMaxTailBytes);
  // The line end of the last line does not begin another one.
  std::int64_t left = lines;
  for (std::int64_t end = size; end > first;) {
    const std::int64_t begin = std::max(first, end - static_cast<std::int64_t>(kBlockBytes));
    NIBBLE_ASSIGN_OR_RETURN(const std::string block, file.Read(begin, static_cast<std::size_t>(end - begin)));
    for (std::size_t i = block.size(); i-- > 0;) {
      const std::int64_t at = begin + static_cast<std::int64_t>(i);
      if (block[i] == '\n' && at != size - 1 && --left == 0) return at + 1;
    }
    end = begin;
  }
  return first;
}

}  // namespace nibble::store
