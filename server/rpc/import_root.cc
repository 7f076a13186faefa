#include "server/rpc/import_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

using base::StrCat;

absl::Status Denied(const std::string& what) {
  return base::WithReason(absl::PermissionDeniedError(what), "IMPORT_ROOT");
}

// openat2(2): glibc has no wrapper.
int OpenBeneath(int root, const char* path, std::uint64_t flags) {
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, root, path, &how, sizeof how));
}

absl::Status PathError(const std::string& path, int error) {
  if (error == ENOENT) return absl::NotFoundError(StrCat("server_path: ", path.substr(0, 256), " is not below the import root"));
  return Denied(StrCat("server_path: ", path.substr(0, 256), " cannot be opened below the import root"));
}

// An entry that leads out would be read by name later.
absl::Status CheckEntries(int directory, int root, const std::string& path) {
  const int copy = dup(directory);
  if (copy < 0) return absl::InternalError("dup failed");
  DIR* listing = fdopendir(copy);
  if (listing == nullptr) {
    close(copy);
    return absl::OkStatus();  // a file
  }
  absl::Status status;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const int fd = OpenBeneath(root, (path + "/" + name).c_str(), O_PATH);
    if (fd < 0) {
      status = PathError(path + "/" + name, errno);
      break;
    }
    close(fd);
  }
  closedir(listing);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BeneathPath>> BeneathPath::Open(const std::string& root, const std::string& path) {
  if (root.empty()) return Denied("server_path: nibbled was started without --import_root");
  if (path.empty() || path.find('\0') != std::string::npos) return base::FieldError("server_path", "is empty or holds a zero byte");
  const int root_fd = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root_fd < 0) return Denied(StrCat("--import_root: ", root, " cannot be opened"));
  const int fd = OpenBeneath(root_fd, path.c_str(), O_RDONLY | O_NONBLOCK);
  const int error = errno;
  if (fd < 0) {
    close(root_fd);
    return PathError(path, error);
  }
  std::unique_ptr<BeneathPath> result(new BeneathPath(fd));
  const absl::Status status = CheckEntries(fd, root_fd, path);
  close(root_fd);
  if (!status.ok()) return status;
  return result;
}

BeneathPath::~BeneathPath() { close(fd_); }

std::string BeneathPath::path() const { return StrCat("/proc/self/fd/", fd_); }

}  // namespace nibble::rpc
