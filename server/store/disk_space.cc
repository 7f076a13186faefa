#include "server/store/disk_space.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

namespace {
constexpr std::uint64_t kLeastWatermark = std::uint64_t{1} << 30;
}  // namespace

std::uint64_t DefaultWatermark(std::uint64_t total_bytes) { return std::max(total_bytes / 20, kLeastWatermark); }

absl::StatusOr<std::uint64_t> TotalBytes(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) {
    return absl::InternalError(base::StrCat("statvfs ", path, ": ", std::strerror(errno)));
  }
  return static_cast<std::uint64_t>(info.f_blocks) * info.f_frsize;
}

absl::Status CheckSpace(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(path));
  if (free >= min_free_bytes) return absl::OkStatus();
  return base::WithReason(
      absl::ResourceExhaustedError(base::StrCat("only ", free, " bytes are free on the server's disk, wanted ", min_free_bytes,
                                                ": delete models, datasets or jobs")),
      "DISK_FULL", {{"free_bytes", std::to_string(free)}, {"wanted_bytes", std::to_string(min_free_bytes)}});
}

absl::StatusOr<std::uint64_t> SpareBytes(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(path));
  return free > min_free_bytes ? free - min_free_bytes : 0;
}

absl::Status CheckPlannedSpace(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes, std::int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t spare, SpareBytes(files, path, min_free_bytes));
  if (static_cast<std::uint64_t>(bytes) <= spare) return absl::OkStatus();
  return base::WithReason(
      absl::ResourceExhaustedError(base::StrCat("the job writes up to ", bytes, " bytes, ", spare, " may be written on the server's disk: ",
                                                "delete models, datasets or jobs")),
      "DISK_FULL", {{"need", std::to_string(bytes)}, {"have", std::to_string(spare)}});
}

}  // namespace nibble::store
