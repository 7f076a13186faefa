#include "server/data/large_rows.h"

#include <chrono>
#include <string>

#include "server/base/error.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::data {
namespace {

constexpr std::chrono::milliseconds kCheckEvery(50);  // between calls of `cancelled` while a row waits
// After a row that took this much, the allocator's free memory is returned at once.
constexpr std::int64_t kReturnedBytes = 64 << 20;

}  // namespace

absl::StatusOr<LargeRows::Turn> LargeRows::Await(const base::Cancelled& cancelled) {
  base::MutexLock lock(mutex_);
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
  while (!changed_.WaitFor(lock, kCheckEvery, is_free)) {
    lock.Unlock();
    const absl::Status wanted = base::CheckCancelled(cancelled);
    lock.Lock();
    NIBBLE_RETURN_IF_ERROR(wanted);
  }
  busy_ = true;
  return Turn(this);
}

LargeRows::Turn::~Turn() {
  if (rows_ == nullptr) return;
  if (bytes_ >= kReturnedBytes) base::ReturnFreeMemory();
  taken_.clear();
  base::MutexLock lock(rows_->mutex_);
  rows_->busy_ = false;
  rows_->changed_.NotifyAll();
}

absl::Status LargeRows::Turn::Need(std::int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  if (rows_->memory_ != nullptr) {
    auto more = rows_->memory_->TryTake(bytes - bytes_);
    if (more == nullptr) {
      const std::int64_t have = rows_->memory_->left() + bytes_;
      return base::WithReason(
          absl::ResourceExhaustedError(base::StrCat("encoding the row takes about ", bytes, " bytes of memory, ", have,
                                                    " are left for models and trainers: unload models, wait for jobs "
                                                    "to end, or split the row")),
          "OUT_OF_DEVICE_MEMORY", {{"need", std::to_string(bytes)}, {"have", std::to_string(have)}});
    }
    taken_.push_back(std::move(more));
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace nibble::data
