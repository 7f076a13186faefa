#pragma once
#include <cstdint>
#include <memory>

#include "server/base/mutex.h"

namespace nibble::base {

// Memory that several owners share: each reserves its planned bytes before it allocates. A budget may lie within
// another; bytes are then taken from both. Thread-safe.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  // limit 0: no known limit; everything fits.
  static std::shared_ptr<MemoryBudget> Make(std::int64_t limit, std::shared_ptr<MemoryBudget> within = nullptr) {
    return std::shared_ptr<MemoryBudget>(new MemoryBudget(limit, std::move(within)));
  }

  // Takes `bytes` until the last copy of the handle is destroyed. The handle keeps the budget alive. Null if fewer
  // bytes are left.
  std::shared_ptr<const void> TryTake(std::int64_t bytes);
  // Takes `bytes` even if fewer are left: for memory that is already in use or that the caller needs in any case.
  std::shared_ptr<const void> TakeAnyway(std::int64_t bytes);
  // Bytes left, at least 0. Without a limit: the largest int64.
  std::int64_t left() const;
  // The smaller of this limit and those of the outer budgets. Without a limit: the largest int64. TryTake never
  // succeeds for more bytes than this.
  std::int64_t limit() const;

 private:
  MemoryBudget(std::int64_t limit, std::shared_ptr<MemoryBudget> within) : limit_(limit), within_(std::move(within)) {}
  std::int64_t LeftHere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const void> Handle(std::int64_t bytes, std::shared_ptr<const void> of_within);

  const std::int64_t limit_;
  const std::shared_ptr<MemoryBudget> within_;
  mutable Mutex mutex_;
  std::int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble::base
