#include "server/store/state_directory.h"

#include <filesystem>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/database_pair.h"

namespace nibble::store {

namespace {

// Space for a start on a full disk: SQLite's shared memory (32 KiB), interrupted operations, server.json.
constexpr std::uint64_t kStartBytes = 2 * kReservePieceBytes;

// Creates the directory. `flag` names it in errors.
absl::StatusOr<std::string> MakeAbsolute(base::FileSystem& files, const char* flag, const std::string& path) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(path));
  std::error_code error;
  std::string absolute = std::filesystem::canonical(path, error).string();
  if (error) return absl::InvalidArgumentError(base::StrCat(flag, ": ", path, ": ", error.message()));
  return absolute;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(base::FileSystem& files, const std::string& path,
                                                                     UploadLimits limits,
                                                                     const std::string& database_path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string root, MakeAbsolute(files, "--state_dir", path));
  std::string database_root = root;
  if (!database_path.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(database_root, MakeAbsolute(files, "--database_dir", database_path));
  }
  const StatePaths paths(root, database_root);
  // Lock before anything is read or removed: another server's work in progress looks like leftovers.
  NIBBLE_ASSIGN_OR_RETURN(auto lock, StateLock::Acquire(paths.lock()));
  std::unique_ptr<StateLock> database_lock;
  if (database_root != root) {
    NIBBLE_ASSIGN_OR_RETURN(database_lock, StateLock::Acquire(paths.database_lock()));
  }
  NIBBLE_RETURN_IF_ERROR(CheckDatabasePair(files, paths));
  NIBBLE_ASSIGN_OR_RETURN(auto reserve, DiskReserve::Open(files, paths.reserve()));
  NIBBLE_RETURN_IF_ERROR(files.RemoveAll(paths.uploads()));
  reserve->MakeRoom(kStartBytes);
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.uploads()));
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.jobs()));
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, paths.bases()));
  NIBBLE_ASSIGN_OR_RETURN(auto models, ModelStore::Open(files, paths, limits.min_free_bytes));
  NIBBLE_ASSIGN_OR_RETURN(auto datasets, DatasetStore::Open(files, paths, limits));
  return std::unique_ptr<StateDirectory>(new StateDirectory{files, paths, std::move(lock), std::move(database_lock),
                                                            std::move(reserve), std::move(models), std::move(datasets),
                                                            limits.min_free_bytes});
}

}  // namespace nibble::store
