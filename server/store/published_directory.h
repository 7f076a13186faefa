// Directories that appear whole or not at all (docs/life_of_a_job.md): files first, each synced; manifest.json last;
// then a rename and a sync of the parent. Models, datasets, checkpoints and a trainer's output are all published like
// this.
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
#include "server/base/written_digests.h"

namespace nibble::store {

inline constexpr char kManifestFile[] = "manifest.json";

struct ManifestEntry {
  std::string name;  // relative, "a/b" for a file in a subdirectory
  std::uint64_t size = 0;
  std::string sha256;
};

struct Manifest {
  std::vector<ManifestEntry> files;  // by name
  std::string digest;                // SHA-256 of manifest.json itself; identifies the content of the directory
  std::uint64_t total_bytes() const;
};

// Called before each piece is read, because a directory may hold gigabytes.
using base::Cancelled;

// NotFound if there is no manifest; DataLoss (reason MANIFEST_INVALID) if it is malformed.
absl::StatusOr<Manifest> ReadManifest(base::FileSystem& files, const std::string& directory);
// ReadManifest, and checks that every file exists with its size. Cheap enough for start-up and listings.
absl::StatusOr<Manifest> CheckSizes(base::FileSystem& files, const std::string& directory);
// CheckSizes, and checks every hash. Call it before a checkpoint or an output is used. DataLoss (CHECKSUM_MISMATCH)
// names the file and its `expected` and `found` digests (if the size differs: the numbers of bytes).
absl::StatusOr<Manifest> Verify(base::FileSystem& files, const std::string& directory, const Cancelled& cancelled = {});
// Whether a status of the three functions above means that the directory is missing or does not match its manifest. Any
// other error means only that it could not be read now.
bool SaysDamaged(const absl::Status& status);

// When a file was last written; the epoch if unknown.
absl::Time ModifiedTime(const std::string& path);

// SHA-256 and size of a file. Does not read the file if `written` has its digest; otherwise reads it in pieces, so that
// memory use does not depend on the size.
absl::StatusOr<ManifestEntry> HashFile(const std::string& path, const Cancelled& cancelled = {},
                                       const base::WrittenDigests& written = {});

// A directory that is being written. The destructor removes it unless Commit succeeded. One thread.
class PendingDirectory {
 public:
  // Creates the directory at `temporary` (by default beside the target). The target's parent must exist when Commit is
  // called.
  static absl::StatusOr<PendingDirectory> Create(base::FileSystem& files, std::string target);
  static absl::StatusOr<PendingDirectory> Create(base::FileSystem& files, std::string target, std::string temporary);
  PendingDirectory(PendingDirectory&& other) noexcept;
  PendingDirectory& operator=(PendingDirectory&&) = delete;
  ~PendingDirectory();

  // Write below here by any means; Commit syncs and hashes what it finds.
  const std::string& path() const { return path_; }
  const std::string& target() const { return target_; }

  // `written`: digests of files that need not be read again. AlreadyExists if the target exists. After any error
  // nothing is published and the directory will be removed.
  absl::StatusOr<Manifest> Commit(const Cancelled& cancelled = {}, const base::WrittenDigests& written = {});

 private:
  PendingDirectory(base::FileSystem& files, std::string path, std::string target);
  base::FileSystem* files_;
  std::string path_;  // empty once committed or moved from
  std::string target_;
};

// Moves a directory that already has its manifest, and syncs both parents. AlreadyExists if `to` exists. After another
// error the directory may have been moved: then SyncMoved makes the move durable.
absl::Status MovePublished(base::FileSystem& files, const std::string& from, const std::string& to);
absl::Status SyncMoved(base::FileSystem& files, const std::string& from, const std::string& to);
// Renames the directory to a temporary name and returns that name. The published directory is then gone; the caller
// removes its files with RemoveHidden, which may take long. A crash leaves only a temporary, which start-up removes.
absl::StatusOr<std::string> HidePublished(base::FileSystem& files, const std::string& directory);
// Removes a directory that HidePublished returned; "": does nothing. Logs a failure, after which the next start removes
// it.
void RemoveHidden(base::FileSystem& files, const std::string& directory);
// Renames the directory to a temporary name, then removes it. A crash leaves only a temporary, which start-up removes.
absl::Status RemovePublished(base::FileSystem& files, const std::string& directory);
// Removes entries directly below `directory` that have names made by base::TemporaryName. OK if `directory` does not
// exist.
absl::Status RemoveTemporaries(base::FileSystem& files, const std::string& directory);

}  // namespace nibble::store
