#include "server/jobs/attempt_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/layout.h"

namespace nibble::jobs {

namespace {

constexpr std::uint64_t kMaxHolderBytes = 256;

absl::Status WriteHolder(int fd, const std::string& path, const std::string& holder) {
  std::size_t written = 0;
  while (written < holder.size()) {
    const ssize_t n = ::write(fd, holder.data() + written, holder.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    written += static_cast<std::size_t>(n);
  }
  if (written == holder.size() && ::fsync(fd) == 0) return absl::OkStatus();
  const std::string why = base::StrCat("write ", path, ": ", std::strerror(errno));
  if (errno != ENOSPC && errno != EDQUOT) return absl::InternalError(why);
  return base::WithReason(absl::ResourceExhaustedError(why), "DISK_FULL");
}

}  // namespace

absl::StatusOr<AttemptClaim> AttemptClaim::Take(const std::string& attempt_directory, std::string holder) {
  AttemptClaim claim(base::JoinPath(attempt_directory, store::kAttemptClaimFile), std::move(holder));
  const int fd = ::open(claim.path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
  if (fd < 0 && errno == EEXIST) {
    const auto other = base::RealFileSystem().Read(claim.path_, kMaxHolderBytes);
    return absl::AlreadyExistsError(
        base::StrCat(attempt_directory, " belongs to ", other.ok() ? *other : std::string("another process")));
  }
  if (fd < 0) return absl::InternalError(base::StrCat("create ", claim.path_, ": ", std::strerror(errno)));
  const absl::Status written = WriteHolder(fd, claim.path_, claim.holder_);
  ::close(fd);
  NIBBLE_RETURN_IF_ERROR(written);
  NIBBLE_RETURN_IF_ERROR(base::RealFileSystem().SyncDirectory(attempt_directory));
  return claim;
}

std::string ClaimHolder(const std::string& attempt_directory) {
  return base::RealFileSystem()
      .Read(base::JoinPath(attempt_directory, store::kAttemptClaimFile), kMaxHolderBytes)
      .value_or("");
}

bool AttemptClaim::held() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT && errno != ENOTDIR;  // ENOTDIR: a file has replaced the attempt's directory
  ::close(fd);
  const auto holder = base::RealFileSystem().Read(path_, kMaxHolderBytes);
  return !holder.ok() || *holder == holder_;
}

}  // namespace nibble::jobs
