#include "server/base/errno_error.h"

#include <cerrno>
#include <cstring>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::base {

absl::Status ErrnoError(int error, std::string_view what, const std::string& path) {
  const std::string text = StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ESRCH: return absl::NotFoundError(text);  // ESRCH: a process under /proc has ended
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: return absl::InvalidArgumentError(text);
    case EEXIST: return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS: return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT: return WithReason(absl::ResourceExhaustedError(text), "DISK_FULL");
    case EMFILE:
    case ENFILE: return absl::ResourceExhaustedError(text);
    default: return absl::InternalError(text);
  }
}

}  // namespace nibble::base
