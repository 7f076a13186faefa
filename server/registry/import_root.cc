#include "server/registry/import_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::registry {

namespace {

using base::StrCat;

absl::Status Denied(const std::string& what) {
  return base::WithReason(absl::InvalidArgumentError(what), "IMPORT_ROOT", {{"field", "server_path"}});
}

// openat2(2): glibc has no wrapper.
int OpenBeneath(int root, const char* path, std::uint64_t flags) {
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, root, path, &how, sizeof how));
}

absl::Status PathError(const std::string& path, int error) {
  if (error == ENOENT)
    return absl::NotFoundError(StrCat("server_path: ", path.substr(0, 256), " is not below the import root"));
  return Denied(StrCat("server_path: ", path.substr(0, 256), " cannot be opened below the import root"));
}

// `fd` was opened with O_PATH, which does not open the file itself: opening a device or a pipe can have side effects. A
// file with a second hard link is refused because it may be a file outside the root.
absl::Status CheckKind(int fd, const std::string& path) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return PathError(path, errno);
  if (S_ISDIR(info.st_mode) || (S_ISREG(info.st_mode) && info.st_nlink == 1)) return absl::OkStatus();
  return Denied(StrCat("server_path: ", path.substr(0, 256),
                       S_ISREG(info.st_mode) ? " has a second hard link" : " is not a regular file or directory"));
}

// Refuses a directory with an entry that leads out of the root: entries are read by name later.
absl::Status CheckEntries(int file_or_directory, int root, const std::string& path) {
  struct stat info{};
  if (fstat(file_or_directory, &info) != 0) return PathError(path, errno);
  if (!S_ISDIR(info.st_mode)) return absl::OkStatus();
  const int copy = dup(file_or_directory);
  if (copy < 0) return PathError(path, errno);
  DIR* listing = fdopendir(copy);
  if (listing == nullptr) {
    const int error = errno;
    close(copy);
    return PathError(path, error);
  }
  absl::Status status;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(listing);
    if (entry == nullptr) {
      if (errno != 0) status = PathError(path, errno);
      break;
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string below = StrCat(path, "/", name);
    const int fd = OpenBeneath(root, below.c_str(), O_PATH);
    if (fd < 0) {
      status = PathError(below, errno);
      break;
    }
    status = CheckKind(fd, below);
    close(fd);
    if (!status.ok()) break;
  }
  closedir(listing);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BeneathPath>> BeneathPath::Open(const std::string& root, const std::string& path) {
  if (root.empty()) {
    return base::WithReason(absl::PermissionDeniedError("server_path: nibbled was started without --import_root"),
                            "IMPORT_ROOT");
  }
  if (path.empty() || path.find('\0') != std::string::npos)
    return base::FieldError("server_path", "is empty or holds a zero byte");
  const int root_fd = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root_fd < 0) return base::About(absl::FailedPreconditionError("--import_root cannot be opened"), "--import_root");
  auto result = Open(root_fd, path);
  close(root_fd);
  return result;
}

absl::StatusOr<std::unique_ptr<BeneathPath>> BeneathPath::Open(int root, const std::string& path) {
  const int handle = OpenBeneath(root, path.c_str(), O_PATH);
  if (handle < 0) return PathError(path, errno);
  const BeneathPath looked_at(handle);
  NIBBLE_RETURN_IF_ERROR(CheckKind(handle, path));
  const int fd = open(looked_at.path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return PathError(path, errno);
  std::unique_ptr<BeneathPath> result(new BeneathPath(fd));
  NIBBLE_RETURN_IF_ERROR(CheckEntries(fd, root, path));
  return result;
}

BeneathPath::~BeneathPath() { close(fd_); }

std::string BeneathPath::path() const { return StrCat("/proc/self/fd/", fd_); }

}  // namespace nibble::registry
