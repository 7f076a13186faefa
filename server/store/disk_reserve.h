// Room on the disk that is kept for ends: a cancel, a pause, the end of a job, its deletion (docs/faults.md, R8). A file beside the
// database whose blocks hold nothing. Where the database has no room for an end, a piece of the file is given back; when there is
// room again it is filled up. In pieces, because others wait for room too: a trainer at its checkpoint would take all of it at once.
// A server that starts on a full disk has two of them: one that is not there can end nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/mutex.h"

namespace nibble::store {

inline constexpr std::uint64_t kReserveBytes = 4 << 20;
// An end writes some ten pages of 4 KiB to SQLite's log.
inline constexpr std::uint64_t kReservePieceBytes = 64 << 10;

// Thread-safe.
class DiskReserve {
 public:
  // Takes over the file at `path` or makes it, and fills it up. Internal where it cannot be opened.
  static absl::StatusOr<std::unique_ptr<DiskReserve>> Open(base::FileSystem& files, const std::string& path);
  ~DiskReserve();
  DiskReserve(const DiskReserve&) = delete;
  DiskReserve& operator=(const DiskReserve&) = delete;

  // Gives back one piece; false when nothing is left.
  bool Release();
  // For a start: gives back pieces while less than `bytes` is free, no more than hold as much.
  void MakeRoom(std::uint64_t bytes);
  // Makes the file whole unless the disk is so short of room that others need it more. Costs nothing while it is whole.
  void Refill();
  std::uint64_t bytes() const;

 private:
  DiskReserve(base::FileSystem& files, std::string path, int fd);

  base::FileSystem& files_;
  const std::string path_;
  const int fd_;
  mutable base::Mutex mutex_;
  std::uint64_t size_ ABSL_GUARDED_BY(mutex_);
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;  // that it cannot be filled up, since it last could
};

}  // namespace nibble::store
