#include "server/jobs/database_backup.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;
using soci::into;
using soci::use;

namespace {

constexpr std::size_t kKept = 2;  // backups, the newest
constexpr char kSuffix[] = ".backup-v";
constexpr char kUnfinished[] = ".tmp";
// Minimum free space beside the copy, for the upgrade itself and the write-ahead log.
constexpr std::uint64_t kSpareBytes = 16 << 20;

std::uint64_t CopyBytes(soci::session& session) {
  long long pages = 0, page_bytes = 0;
  session << "PRAGMA page_count", into(pages);
  session << "PRAGMA page_size", into(page_bytes);
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
}

absl::Status CheckRoom(soci::session& session, const std::string& folder, std::int64_t version,
                       base::FileSystem& files) {
  const std::uint64_t needed = CopyBytes(session) + kSpareBytes;
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files.FreeBytes(folder));
  if (free >= needed) return absl::OkStatus();
  return base::WithReason(
      absl::ResourceExhaustedError(StrCat("database: the backup before the upgrade from schema version ", version,
                                          " needs ", needed, " free bytes, but only ", free,
                                          " are free; nothing was changed: free space, or start the previous nibbled")),
      "DISK_FULL");
}

std::optional<std::int64_t> VersionOf(const std::string& name, const std::string& prefix) {
  std::int64_t version = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, version);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(version) : std::nullopt;
}

// Errors are only logged: an old backup is harmless.
void RemoveOld(const std::string& folder, const std::string& prefix, base::FileSystem& files) {
  const auto names = files.List(folder);
  if (!names.ok()) return;
  std::vector<std::int64_t> versions;
  for (const std::string& name : *names) {
    if (const auto version = VersionOf(name, prefix); version.has_value()) versions.push_back(*version);
  }
  std::sort(versions.rbegin(), versions.rend());
  for (std::size_t i = kKept; i < versions.size(); ++i) {
    if (absl::Status removed = files.RemoveAll(base::JoinPath(folder, StrCat(prefix, versions[i]))); !removed.ok()) {
      base::LogWarning("cannot remove an old backup of the database", {{"why", std::string(removed.message())}});
    }
  }
}

}  // namespace

std::string BackupPath(const std::string& path, std::int64_t version) { return StrCat(path, kSuffix, version); }

absl::Status BackUp(soci::session& session, const std::string& path, std::int64_t version, base::FileSystem& files) {
  const std::filesystem::path file(path);
  const std::string folder = file.parent_path().string(), target = BackupPath(path, version),
                    unfinished = target + kUnfinished;
  NIBBLE_RETURN_IF_ERROR(files.RemoveAll(unfinished));
  NIBBLE_RETURN_IF_ERROR(CheckRoom(session, folder, version, files));
  session << "VACUUM INTO :path", use(unfinished);
  std::error_code error;
  std::filesystem::permissions(unfinished, std::filesystem::status(file).permissions(), error);
  if (error) return absl::InternalError(StrCat("database: cannot set permissions of the backup: ", error.message()));
  {
    // SQLite does not sync the copy.
    NIBBLE_ASSIGN_OR_RETURN(const auto copy, files.OpenForAppend(unfinished));
    NIBBLE_RETURN_IF_ERROR(copy->Sync());
    NIBBLE_RETURN_IF_ERROR(copy->Close());
  }
  NIBBLE_RETURN_IF_ERROR(files.Rename(unfinished, target));
  NIBBLE_RETURN_IF_ERROR(files.SyncDirectory(folder));
  base::LogInfo("backed up the database before its upgrade", {{"file", target}, {"version", version}});
  RemoveOld(folder, StrCat(file.filename().string(), kSuffix), files);
  return absl::OkStatus();
}

}  // namespace nibble::jobs
