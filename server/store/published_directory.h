// Directories that appear whole or not at all (docs/life_of_a_job.md): files first, each synced; manifest.json last; then a rename and a
// sync of the parent. Models, datasets, checkpoints and a trainer's output are all published like this.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"

namespace nibble::store {

inline constexpr char kManifestFile[] = "manifest.json";

struct ManifestEntry {
  std::string name;  // relative, "a/b" for a file in a subdirectory
  std::uint64_t size = 0;
  std::string sha256;
};

struct Manifest {
  std::vector<ManifestEntry> files;  // by name
  std::string digest;                // SHA-256 of manifest.json itself: stands for the whole directory
  std::uint64_t total_bytes() const;
};

// Called before each piece that is read of what may be gigabytes.
using base::Cancelled;

// NotFound without a manifest; DataLoss (reason MANIFEST_INVALID) for one that cannot be read.
absl::StatusOr<Manifest> ReadManifest(base::FileSystem& files, const std::string& directory);
// ReadManifest, and every file is there with its size: what start-up and listings can afford.
absl::StatusOr<Manifest> CheckSizes(base::FileSystem& files, const std::string& directory);
// CheckSizes, and every hash: before a checkpoint or an output is used. DataLoss (CHECKSUM_MISMATCH) names the file and the digests
// that were `expected` and `found` (of another size: the bytes).
absl::StatusOr<Manifest> Verify(base::FileSystem& files, const std::string& directory, const Cancelled& cancelled = {});
// Of a status of the three above: the directory is not, or not as it was published. Else it could not be read now, which
// says nothing of it.
bool SaysDamaged(const absl::Status& status);

// When a file was last written; the epoch when that cannot be told.
absl::Time ModifiedTime(const std::string& path);

// SHA-256 and size of a file, read in pieces: memory stays flat whatever its size.
absl::StatusOr<ManifestEntry> HashFile(const std::string& path, const Cancelled& cancelled = {});

// A directory in the making. Dropped without Commit, it is removed. One thread.
class PendingDirectory {
 public:
  // Made at `temporary` (by default beside the target); its target's parent must exist when Commit is called.
  static absl::StatusOr<PendingDirectory> Create(base::FileSystem& files, std::string target);
  static absl::StatusOr<PendingDirectory> Create(base::FileSystem& files, std::string target, std::string temporary);
  PendingDirectory(PendingDirectory&& other) noexcept;
  PendingDirectory& operator=(PendingDirectory&&) = delete;
  ~PendingDirectory();

  // Write below here by any means; Commit syncs and hashes what it finds.
  const std::string& path() const { return path_; }
  const std::string& target() const { return target_; }

  // AlreadyExists when the target is there; on any error the directory is given up and nothing is published.
  absl::StatusOr<Manifest> Commit(const Cancelled& cancelled = {});

 private:
  PendingDirectory(base::FileSystem& files, std::string path, std::string target);
  base::FileSystem* files_;
  std::string path_;  // empty once committed or moved from
  std::string target_;
};

// Moves a directory that has its manifest already; both parents are synced. AlreadyExists when `to` is there. After another error it
// may have been moved: then SyncMoved makes it last.
absl::Status MovePublished(base::FileSystem& files, const std::string& from, const std::string& to);
absl::Status SyncMoved(base::FileSystem& files, const std::string& from, const std::string& to);
// Out of sight at once by a rename, then removed: a crash leaves only what start-up collects.
absl::Status RemovePublished(base::FileSystem& files, const std::string& directory);
// Removes what base::TemporaryName named directly below `directory`. Fine when it is absent.
absl::Status RemoveTemporaries(base::FileSystem& files, const std::string& directory);

}  // namespace nibble::store
