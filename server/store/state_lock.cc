#include "server/store/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/strings.h"

namespace nibble::store {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Acquire(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) return absl::InternalError(base::StrCat("open ", path, ": ", std::strerror(errno)));
  std::unique_ptr<StateLock> lock(new StateLock(fd));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::InternalError(base::StrCat("flock ", path, ": ", std::strerror(errno)));
    char pid[32] = {};
    const ssize_t n = ::pread(fd, pid, sizeof pid - 1, 0);
    const std::string owner = n > 0 ? std::string(pid, static_cast<std::size_t>(n)) : "unknown";
    return base::WithReason(absl::FailedPreconditionError(base::StrCat(
                                "another nibbled (pid ", owner,
                                ") uses this directory: ", std::filesystem::path(path).parent_path().string())),
                            "STATE_DIR_IN_USE", {{"pid", owner}});
  }
  // Overwrites the old pid: the file's block is already allocated, and a full disk has no other.
  const std::string pid = std::to_string(::getpid());
  const ssize_t written = ::pwrite(fd, pid.data(), pid.size(), 0);
  const int error = written < 0 ? errno : ENOSPC;  // a short write: the disk is full
  const bool whole = written == static_cast<ssize_t>(pid.size());
  if (!whole && error != ENOSPC && error != EDQUOT) {
    return absl::InternalError(base::StrCat("write ", path, ": ", std::strerror(error)));
  }
  // The lock is valid without a pid: a second server then reports an unknown owner. A wrong pid must not remain.
  if (::ftruncate(fd, whole ? static_cast<off_t>(pid.size()) : 0) != 0) {
    return absl::InternalError(base::StrCat("truncate ", path, ": ", std::strerror(errno)));
  }
  if (!whole) base::LogWarning("disk full: cannot write this server's pid to the lock file", {{"path", path}});
  return lock;
}

StateLock::~StateLock() { ::close(fd_); }

}  // namespace nibble::store
