#pragma once
#include <cstdint>
#include <memory>

#include "server/base/mutex.h"

namespace nibble::base {

// Memory that several share, as planned before each takes its part. A budget may be a part of another, out of which the same
// bytes are taken. Thread-safe.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  // limit 0: no limit is known, everything fits.
  static std::shared_ptr<MemoryBudget> Make(std::int64_t limit, std::shared_ptr<MemoryBudget> within = nullptr) {
    return std::shared_ptr<MemoryBudget>(new MemoryBudget(limit, std::move(within)));
  }

  // `bytes`, until the last handle goes, which may be after whoever made the budget. Null when fewer are left.
  std::shared_ptr<const void> TryTake(std::int64_t bytes);
  // For who has its memory already, or cannot do with what there is.
  std::shared_ptr<const void> TakeAnyway(std::int64_t bytes);
  // Bytes: at least 0, the largest number without a limit.
  std::int64_t left() const;
  // The smallest limit here and outside; the largest number without one. More can never be taken.
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
