#include "server/jobs/attempt_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "server/base/errno_error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/layout.h"

namespace nibble::jobs {

namespace {

constexpr std::uint64_t kMaxHolderBytes = 256;

}  // namespace

absl::StatusOr<AttemptClaim> AttemptClaim::Take(const std::string& attempt_directory, std::string holder) {
  AttemptClaim claim(base::JoinPath(attempt_directory, store::kAttemptClaimFile), std::move(holder));
  const int fd = ::open(claim.path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
  if (fd < 0 && errno == EEXIST) {
    const auto other = base::RealFileSystem().Read(claim.path_, kMaxHolderBytes);
    return absl::AlreadyExistsError(
        base::StrCat(attempt_directory, " belongs to ", other.ok() ? *other : std::string("another process")));
  }
  if (fd < 0) return base::ErrnoError(errno, "create", claim.path_);
  ::close(fd);
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::RealFileSystem().OpenForAppend(claim.path_));
  NIBBLE_RETURN_IF_ERROR(file->Append(claim.holder_));
  NIBBLE_RETURN_IF_ERROR(file->Sync());
  NIBBLE_RETURN_IF_ERROR(base::RealFileSystem().SyncDirectory(attempt_directory));
  return claim;
}

std::string ClaimHolder(const std::string& attempt_directory) {
  return base::RealFileSystem()
      .Read(base::JoinPath(attempt_directory, store::kAttemptClaimFile), kMaxHolderBytes)
      .value_or("");
}

bool AttemptClaim::held() const {
  const auto holder = base::RealFileSystem().Read(path_, kMaxHolderBytes);
  if (holder.ok()) return *holder == holder_;
  // InvalidArgument: a file has replaced the attempt's directory.
  return !absl::IsNotFound(holder.status()) && !absl::IsInvalidArgument(holder.status());
}

}  // namespace nibble::jobs
