#include "server/base/memory_budget.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace nibble::base {

std::int64_t MemoryBudget::LeftHere() const {
  return limit_ > 0 ? std::max<std::int64_t>(limit_ - taken_, 0) : std::numeric_limits<std::int64_t>::max();
}

std::int64_t MemoryBudget::left() const {
  const std::int64_t outside = within_ != nullptr ? within_->left() : std::numeric_limits<std::int64_t>::max();
  MutexLock lock(mutex_);
  return std::min(LeftHere(), outside);
}

std::int64_t MemoryBudget::limit() const {
  const std::int64_t here = limit_ > 0 ? limit_ : std::numeric_limits<std::int64_t>::max();
  return within_ != nullptr ? std::min(here, within_->limit()) : here;
}

std::shared_ptr<const void> MemoryBudget::Handle(std::int64_t bytes, std::shared_ptr<const void> of_within) {
  // Points to the budget only to be non-null; the deleter gives the bytes back.
  return std::shared_ptr<const void>(this,
                                     [self = shared_from_this(), bytes, of_within = std::move(of_within)](const void*) {
                                       MutexLock back(self->mutex_);
                                       self->taken_ -= bytes;
                                     });
}

std::shared_ptr<const void> MemoryBudget::TryTake(std::int64_t bytes) {
  std::shared_ptr<const void> of_within;
  if (within_ != nullptr) {
    of_within = within_->TryTake(bytes);
    if (of_within == nullptr) return nullptr;
  }
  {
    MutexLock lock(mutex_);
    if (bytes > LeftHere()) return nullptr;
    taken_ += bytes;
  }
  return Handle(bytes, std::move(of_within));
}

std::shared_ptr<const void> MemoryBudget::TakeAnyway(std::int64_t bytes) {
  std::shared_ptr<const void> of_within = within_ != nullptr ? within_->TakeAnyway(bytes) : nullptr;
  {
    MutexLock lock(mutex_);
    taken_ += bytes;
  }
  return Handle(bytes, std::move(of_within));
}

}  // namespace nibble::base
