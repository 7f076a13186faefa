#include "server/base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "server/base/errno_error.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::base {
namespace {

class PosixFile : public WritableFile {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  absl::Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0) {
        if (errno == EINTR) continue;
        return ErrnoError(errno, "write", path_);
      }
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (::fsync(fd_) != 0) return ErrnoError(errno, "fsync", path_);
    return absl::OkStatus();
  }
  absl::Status Close() override {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return ErrnoError(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  int fd_;
  std::string path_;
};

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return Open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return Open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  }
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ErrnoError(errno, "open", path);
    std::string text;
    char buffer[1 << 16];
    absl::Status status;
    while (true) {
      const ssize_t n = ::read(fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) status = ErrnoError(errno, "read", path);
      if (n <= 0) break;
      if (text.size() + static_cast<std::size_t>(n) > max_bytes) {
        status = absl::InvalidArgumentError(StrCat(path, " is larger than ", max_bytes, " bytes"));
        break;
      }
      text.append(buffer, static_cast<std::size_t>(n));
    }
    ::close(fd);
    if (!status.ok()) return status;
    return text;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoError(errno, "rename", from);
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoError(errno, "open", path);
    const int rc = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (rc != 0) return ErrnoError(error, "fsync", path);
    return absl::OkStatus();
  }
  absl::Status CreateDirectories(const std::string& path) override {
    for (std::size_t i = 1; i <= path.size(); ++i) {
      if (i != path.size() && path[i] != '/') continue;
      const std::string prefix = path.substr(0, i);
      if (::mkdir(prefix.c_str(), 0750) != 0 && errno != EEXIST) return ErrnoError(errno, "mkdir", prefix);
    }
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return ErrnoError(errno, "stat", path);
    if (!S_ISDIR(info.st_mode)) return absl::AlreadyExistsError(StrCat(path, " is not a directory"));
    return absl::OkStatus();
  }
  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoError(error.value(), "remove", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return ErrnoError(error.value(), "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return ErrnoError(errno, "stat", path);
    return static_cast<std::uint64_t>(info.st_size);
  }
  bool Exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    if (::statvfs(path.c_str(), &info) != 0) return ErrnoError(errno, "statvfs", path);
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  }

 private:
  static absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, int flags) {
    const int fd = ::open(path.c_str(), flags, 0640);
    if (fd < 0) return ErrnoError(errno, "open", path);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixFile>(fd, path));
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static PosixFileSystem files;  // stateless
  return files;
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view bytes) {
  const std::string temp = path + ".tmp";
  {
    NIBBLE_ASSIGN_OR_RETURN(auto file, files.Create(temp));
    NIBBLE_RETURN_IF_ERROR(file->Append(bytes));
    NIBBLE_RETURN_IF_ERROR(file->Sync());
    NIBBLE_RETURN_IF_ERROR(file->Close());
  }
  NIBBLE_RETURN_IF_ERROR(files.Rename(temp, path));
  const std::size_t slash = path.rfind('/');
  return files.SyncDirectory(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return StrCat(directory, directory.back() == '/' ? "" : "/", name);
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError(errno, "open", path);
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return ErrnoError(error, "stat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(StrCat(path, " is not a regular file"));
  }
  const std::size_t size = static_cast<std::size_t>(info.st_size);
  void* data = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return ErrnoError(error, "mmap", path);
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(data), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace nibble::base
