#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"

namespace nibble::serve {

// Memory that the models of a server may take together, as planned before each is loaded. Thread-safe.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  // limit 0: no limit is known, everything fits.
  static std::shared_ptr<MemoryBudget> Make(std::int64_t limit) { return std::shared_ptr<MemoryBudget>(new MemoryBudget(limit)); }

  // `bytes` for `what`, until the last handle goes, which may be after whoever made the budget. Errors: ResourceExhausted
  // (OUT_OF_DEVICE_MEMORY; metadata need, have: bytes).
  absl::StatusOr<std::shared_ptr<const void>> Take(std::int64_t bytes, const std::string& what);

 private:
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}

  const std::int64_t limit_;
  base::Mutex mutex_;
  std::int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble::serve
