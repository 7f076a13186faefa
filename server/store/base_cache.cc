#include "server/store/base_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/disk_space.h"

namespace nibble::store {
namespace {

// Opens and locks the directory. Returns -1 if it does not exist, or if another process uses it (LOCK_EX) or removes it
// (LOCK_SH).
int OpenLocked(const std::string& path, int how) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat locked, named;
  // It may have been removed before it was locked.
  if (::flock(fd, how | LOCK_NB) == 0 && ::fstat(fd, &locked) == 0 && ::stat(path.c_str(), &named) == 0 &&
      locked.st_ino == named.st_ino && locked.st_dev == named.st_dev) {
    return fd;
  }
  ::close(fd);
  return -1;
}

}  // namespace

BaseCache::Entry::~Entry() { ::close(fd_); }

BaseCache::BaseCache(base::FileSystem& files, std::string directory, Limits limits)
    : files_(files), directory_(std::move(directory)), limits_(limits) {}

std::string BaseCache::Path(const std::string& key) const { return base::JoinPath(directory_, key); }

absl::StatusOr<std::unique_ptr<BaseCache::Entry>> BaseCache::Find(const std::string& key, const Cancelled& cancelled) {
  const std::string path = Path(key);
  const int fd = OpenLocked(path, LOCK_SH);
  if (fd < 0) return nullptr;
  std::unique_ptr<Entry> entry(new Entry(path, fd));
  const absl::Status whole = Verify(files_, path, cancelled).status();
  if (whole.ok()) {
    (void)::futimens(fd, nullptr);  // mark as used now
    return entry;
  }
  if (!SaysDamaged(whole)) return whole;
  entry.reset();
  const int alone = OpenLocked(path, LOCK_EX);
  if (alone < 0) return nullptr;  // another process uses it, so it stays
  const absl::Status removed = RemovePublished(files_, path);
  ::close(alone);
  if (!removed.ok()) return removed;
  return nullptr;
}

absl::StatusOr<std::unique_ptr<BaseCache::Entry>> BaseCache::Add(const std::string& key, PendingDirectory made,
                                                                 const Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(files_.CreateDirectories(directory_));
  // Lock it before other processes can see it.
  const int fd = OpenLocked(made.path(), LOCK_SH);
  if (fd < 0) return absl::InternalError(base::StrCat("cannot lock ", made.path()));
  std::unique_ptr<Entry> entry(new Entry(Path(key), fd));
  const absl::Status published = made.Commit(cancelled).status();
  if (absl::IsAlreadyExists(published)) {
    NIBBLE_ASSIGN_OR_RETURN(entry, Find(key, cancelled));
    if (entry == nullptr) return absl::AbortedError(base::StrCat("another process removed ", Path(key)));
    return entry;
  }
  if (!published.ok()) return published;
  // Best effort: the next Add trims the cache again.
  Trim().IgnoreError();
  return entry;
}

absl::StatusOr<std::vector<BaseCache::Held>> BaseCache::LeastRecentlyUsedFirst() const {
  std::vector<Held> held;
  if (!files_.Exists(directory_)) return held;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
  for (const std::string& name : names) {
    if (base::IsTemporaryName(name)) continue;
    const std::string path = Path(name);
    const auto manifest = ReadManifest(files_, path);
    if (!manifest.ok() && !SaysDamaged(manifest.status())) return manifest.status();
    held.push_back(
        {path, manifest.ok() ? ModifiedTime(path) : absl::InfinitePast(), manifest.ok() ? manifest->total_bytes() : 0});
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.used < b.used; });
  return held;
}

absl::Status BaseCache::Trim() {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Held> held, LeastRecentlyUsedFirst());
  std::uint64_t total = 0;
  for (const Held& one : held) total += one.bytes;
  for (const Held& one : held) {
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files_.FreeBytes(directory_));
    if (total <= limits_.max_bytes && free >= limits_.min_free_bytes && one.used != absl::InfinitePast()) break;
    const int fd = OpenLocked(one.path, LOCK_EX);
    if (fd < 0) continue;
    const absl::Status removed = RemovePublished(files_, one.path);
    ::close(fd);
    NIBBLE_RETURN_IF_ERROR(removed);
    total -= one.bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BaseCache::MakeRoom(std::uint64_t bytes) {
  if (!files_.Exists(directory_)) return false;
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, files_.FreeBytes(directory_));
  const std::uint64_t wanted = bytes + limits_.min_free_bytes;
  std::uint64_t missing = wanted > free ? wanted - free : 0;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Held> held, LeastRecentlyUsedFirst());
  std::vector<Held> removable;
  std::uint64_t removable_bytes = 0;
  for (const Held& one : held) {
    const std::uint64_t own_bytes = OwnDirectoryBytes(one.path);
    const int fd = own_bytes > 0 ? OpenLocked(one.path, LOCK_EX) : -1;
    if (fd < 0) continue;
    ::close(fd);
    removable.push_back({one.path, one.used, own_bytes});
    removable_bytes += own_bytes;
  }
  if (missing > removable_bytes) return false;
  for (const Held& one : removable) {
    if (missing == 0) break;
    const int fd = OpenLocked(one.path, LOCK_EX);
    if (fd < 0) continue;  // came into use meanwhile
    const absl::Status removed = RemovePublished(files_, one.path);
    ::close(fd);
    NIBBLE_RETURN_IF_ERROR(removed);
    // Counted instead of measured, because a file system may free the blocks later.
    missing -= std::min(missing, one.bytes);
  }
  return missing == 0;
}

std::uint64_t BaseCache::ReclaimableBytes() const { return OwnDirectoryBytes(directory_); }

}  // namespace nibble::store
