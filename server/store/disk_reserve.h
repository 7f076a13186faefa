// Disk space reserved for ending jobs: a cancel, a pause, the end of a job, its deletion (docs/faults.md, R8). The
// reserve is a preallocated file beside the database. When the disk is too full to record an end, one piece of the file
// is released; when there is room again, the file is refilled. The file is released in pieces, because a trainer that
// writes a checkpoint would take all released space at once. A server that starts on a full disk may use two pieces:
// without a running server, no job can be ended.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/mutex.h"

namespace nibble::store {

inline constexpr std::uint64_t kReserveBytes = 4 << 20;
// Ending a job writes about ten pages of 4 KiB to SQLite's log.
inline constexpr std::uint64_t kReservePieceBytes = 64 << 10;

// Thread-safe.
class DiskReserve {
 public:
  // Opens or creates the file at `path` and refills it. Internal if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<DiskReserve>> Open(base::FileSystem& files, const std::string& path);
  ~DiskReserve();
  DiskReserve(const DiskReserve&) = delete;
  DiskReserve& operator=(const DiskReserve&) = delete;

  // Releases one piece; false when nothing is left, or if the file cannot be cut.
  bool Release();
  // For start-up: releases pieces while less than `bytes` is free, at most enough pieces to hold `bytes`.
  void MakeRoom(std::uint64_t bytes);
  // Refills the file unless the disk has so little room that running work needs it more. Costs nothing while the file
  // is full.
  void Refill();
  std::uint64_t bytes() const;

 private:
  DiskReserve(base::FileSystem& files, std::string path, int fd);

  base::FileSystem& files_;
  const std::string path_;
  const int fd_;
  mutable base::Mutex mutex_;
  std::uint64_t size_ ABSL_GUARDED_BY(mutex_);
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;  // a failed refill was logged since the last success
};

}  // namespace nibble::store
