#include "server/store/job_space.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "server/base/error.h"
#include "server/base/human_bytes.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/base_cache.h"
#include "server/store/disk_space.h"

namespace nibble::store {
namespace {

// Maximum number of entries read in a job's directory, which takes some milliseconds. An attempt has tens of files.
constexpr int kMaxEntries = 1000;

}  // namespace

absl::StatusOr<std::uint64_t> PlannableBytes(base::FileSystem& files, const StatePaths& paths,
                                             std::uint64_t min_free_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(paths.root()));
  const std::uint64_t max_free = free + BaseCache(files, paths.bases(), {}).ReclaimableBytes();
  return max_free > min_free_bytes ? max_free - min_free_bytes : 0;
}

absl::Status CheckPlannedSpace(base::FileSystem& files, const StatePaths& paths, std::uint64_t min_free_bytes,
                               std::int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t have, PlannableBytes(files, paths, min_free_bytes));
  if (static_cast<std::uint64_t>(bytes) <= have) return absl::OkStatus();
  return base::WithReason(absl::ResourceExhaustedError(base::StrCat(
                              "the job writes up to ", base::HumanBytes(bytes), ", the server's disk has room for ",
                              base::HumanBytes(static_cast<std::int64_t>(have)),
                              " above the space that it keeps free (--min_free_bytes): delete models, datasets or "
                              "jobs, or free space on the disk")),
                          "DISK_FULL", {{"need", std::to_string(bytes)}, {"have", std::to_string(have)}});
}

std::uint64_t AttemptsBytes(const StatePaths& paths, const std::string& job_id) {
  std::uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(paths.attempts(job_id), error), end;
  for (int num_read = 0; !error && it != end && num_read < kMaxEntries; ++num_read, it.increment(error)) {
    // Skip attempts/N/output, also under its temporary name.
    if (it.depth() == 1 && it->path().filename().native().starts_with(kOutputDirectory)) {
      it.disable_recursion_pending();
      continue;
    }
    struct stat info;
    if (::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1) continue;
    bytes += static_cast<std::uint64_t>(info.st_blocks) * kStatBlockBytes;
  }
  return bytes;
}

}  // namespace nibble::store
