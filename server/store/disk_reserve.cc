#include "server/store/disk_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/base/log.h"
#include "server/base/strings.h"

namespace nibble::store {

namespace {

// A refill requires this much free space, because on a nearly full disk running work needs the space more.
constexpr std::uint64_t kRefillFromBytes = 4 * kReserveBytes;

std::uint64_t SizeOf(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

DiskReserve::DiskReserve(base::FileSystem& files, std::string path, int fd)
    : files_(files), path_(std::move(path)), fd_(fd), size_(SizeOf(fd)) {}

absl::StatusOr<std::unique_ptr<DiskReserve>> DiskReserve::Open(base::FileSystem& files, const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) return absl::InternalError(base::StrCat("open ", path, ": ", std::strerror(errno)));
  std::unique_ptr<DiskReserve> reserve(new DiskReserve(files, path, fd));
  reserve->Refill();
  return reserve;
}

DiskReserve::~DiskReserve() { ::close(fd_); }

bool DiskReserve::Release() {
  base::MutexLock lock(mutex_);
  if (size_ == 0) return false;
  const std::uint64_t left = size_ - std::min(size_, kReservePieceBytes);
  if (::ftruncate(fd_, static_cast<off_t>(left)) != 0) return false;
  size_ = left;
  base::LogWarning("disk full: released space from the reserve", {{"left_bytes", left}});
  return true;
}

void DiskReserve::MakeRoom(std::uint64_t bytes) {
  for (std::uint64_t made = 0; made < bytes; made += kReservePieceBytes) {
    const auto free = files_.FreeBytes(path_);
    if (!free.ok() || *free >= bytes || !Release()) return;
  }
}

void DiskReserve::Refill() {
  base::MutexLock lock(mutex_);
  if (size_ >= kReserveBytes) return;
  const auto free = files_.FreeBytes(path_);
  if (!free.ok() || *free < kRefillFromBytes) return;
  const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(kReserveBytes));
  if (error == 0) {
    size_ = kReserveBytes;
    complained_ = false;
    return;
  }
  size_ = SizeOf(fd_);  // some file systems keep the part that they could allocate
  if (!std::exchange(complained_, true)) {
    base::LogWarning("cannot allocate the disk reserve", {{"path", path_}, {"why", std::strerror(error)}});
  }
}

std::uint64_t DiskReserve::bytes() const {
  base::MutexLock lock(mutex_);
  return size_;
}

}  // namespace nibble::store
