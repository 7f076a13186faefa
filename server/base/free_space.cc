#include "server/base/free_space.h"

#include "server/base/error.h"
#include "server/base/human_bytes.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::base {

absl::Status CheckSpace(FileSystem& files, const std::string& path, std::uint64_t min_free_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(path));
  if (free >= min_free_bytes) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(StrCat(
          "only ", HumanBytes(static_cast<std::int64_t>(free)), " are free on the server's disk, and the server keeps ",
          HumanBytes(static_cast<std::int64_t>(min_free_bytes)),
          " free (--min_free_bytes; by default 5 % of the disk, at least 1 GiB): delete models, "
          "datasets or jobs, or free space on the disk")),
      "DISK_FULL", {{"free_bytes", std::to_string(free)}, {"wanted_bytes", std::to_string(min_free_bytes)}});
}

}  // namespace nibble::base
