#include "server/serve/memory_budget.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::serve {

absl::StatusOr<std::shared_ptr<const void>> MemoryBudget::Take(std::int64_t bytes, const std::string& what) {
  base::MutexLock lock(mutex_);
  const std::int64_t have = limit_ - taken_;
  if (limit_ > 0 && bytes > have) {
    return base::WithReason(
        absl::ResourceExhaustedError(base::StrCat(what, " needs ", bytes, " bytes, of --serve_memory_bytes=", limit_, " there are ",
                                                  have, " left: unload other models, or lower --kv_tokens")),
        "OUT_OF_DEVICE_MEMORY", {{"need", std::to_string(bytes)}, {"have", std::to_string(have)}});
  }
  taken_ += bytes;
  return std::shared_ptr<const void>(this, [self = shared_from_this(), bytes](const void*) {
    base::MutexLock back(self->mutex_);
    self->taken_ -= bytes;
  });
}

}  // namespace nibble::serve
