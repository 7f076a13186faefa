#include "server/store/state_directory.h"

#include <filesystem>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

namespace {

// Space for a start on a full disk: SQLite's shared memory (32 KiB), interrupted operations, server.json.
constexpr std::uint64_t kStartBytes = 2 * kReservePieceBytes;

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(base::FileSystem& files, const std::string& path,
                                                                     UploadLimits limits) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(path));
  std::error_code error;
  const std::string absolute = std::filesystem::canonical(path, error).string();
  if (error) return absl::InvalidArgumentError(base::StrCat("state_dir ", path, ": ", error.message()));
  const StatePaths paths(absolute);
  // Lock before anything is read or removed: another server's work in progress looks like leftovers.
  NIBBLE_ASSIGN_OR_RETURN(auto lock, StateLock::Acquire(paths.lock()));
  NIBBLE_ASSIGN_OR_RETURN(auto reserve, DiskReserve::Open(files, paths.reserve()));
  NIBBLE_RETURN_IF_ERROR(files.RemoveAll(paths.uploads()));
  reserve->MakeRoom(kStartBytes);
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.uploads()));
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.jobs()));
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, paths.bases()));
  NIBBLE_ASSIGN_OR_RETURN(auto models, ModelStore::Open(files, paths, limits.min_free_bytes));
  NIBBLE_ASSIGN_OR_RETURN(auto datasets, DatasetStore::Open(files, paths, limits));
  return std::unique_ptr<StateDirectory>(new StateDirectory{files, paths, std::move(lock), std::move(reserve),
                                                            std::move(models), std::move(datasets),
                                                            limits.min_free_bytes});
}

}  // namespace nibble::store
