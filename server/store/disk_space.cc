#include "server/store/disk_space.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

namespace {
constexpr std::uint64_t kLeastWatermark = std::uint64_t{1} << 30;
constexpr std::uint32_t kExtents = 128;  // per ioctl

// Bytes in extents that other files share (reflinks); nullopt if the file system does not report them.
std::optional<std::uint64_t> SharedBytes(int fd) {
  alignas(fiemap) char buffer[sizeof(fiemap) + kExtents * sizeof(fiemap_extent)];
  std::uint64_t shared = 0;
  for (std::uint64_t start = 0;;) {
    std::memset(buffer, 0, sizeof buffer);
    auto* map = reinterpret_cast<fiemap*>(buffer);
    map->fm_start = start;
    map->fm_length = FIEMAP_MAX_OFFSET - start;
    map->fm_extent_count = kExtents;
    if (::ioctl(fd, FS_IOC_FIEMAP, map) != 0) return std::nullopt;
    for (std::uint32_t i = 0; i < map->fm_mapped_extents; ++i) {
      const fiemap_extent& extent = map->fm_extents[i];
      if ((extent.fe_flags & FIEMAP_EXTENT_SHARED) != 0) shared += extent.fe_length;
      if ((extent.fe_flags & FIEMAP_EXTENT_LAST) != 0) return shared;
      start = extent.fe_logical + extent.fe_length;
    }
    if (map->fm_mapped_extents == 0) return shared;
  }
}

// Bytes of the disk that removing a regular file frees. Assumes no reflinks if the file system does not report them.
std::uint64_t OwnFileBytes(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return 0;
  struct stat info;
  std::uint64_t bytes = 0;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1) {
    const std::uint64_t taken = static_cast<std::uint64_t>(info.st_blocks) * kStatBlockBytes;
    bytes = taken - std::min(taken, SharedBytes(fd).value_or(0));
  }
  ::close(fd);
  return bytes;
}

}  // namespace

std::uint64_t DefaultWatermark(std::uint64_t total_bytes) { return std::max(total_bytes / 20, kLeastWatermark); }

absl::StatusOr<std::uint64_t> TotalBytes(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) {
    return absl::InternalError(base::StrCat("statvfs ", path, ": ", std::strerror(errno)));
  }
  return static_cast<std::uint64_t>(info.f_blocks) * info.f_frsize;
}

absl::StatusOr<std::uint64_t> SpareBytes(base::FileSystem& files, const std::string& path,
                                         std::uint64_t min_free_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(path));
  return free > min_free_bytes ? free - min_free_bytes : 0;
}

void WarnBelowWatermark(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes,
                        std::string_view warning) {
  const auto free = files.FreeBytes(path);
  if (!free.ok()) {
    base::LogWarning("cannot determine the free disk space",
                     {{"directory", path}, {"why", std::string(free.status().message())}});
  } else if (*free < min_free_bytes) {
    base::LogWarning(warning, {{"directory", path}, {"free_bytes", *free}, {"wanted_bytes", min_free_bytes}});
  }
}

std::uint64_t OwnDirectoryBytes(const std::string& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) bytes += OwnFileBytes(it->path().c_str());
  return bytes;
}

}  // namespace nibble::store
