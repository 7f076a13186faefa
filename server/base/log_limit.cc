#include "server/base/log_limit.h"

#include <utility>

namespace nibble::base {

std::optional<std::int64_t> LogLimit::Take(absl::Duration now) {
  const absl::Duration second = absl::Floor(now, absl::Seconds(1));
  MutexLock lock(mutex_);
  if (second != second_) {
    second_ = second;
    lines_ = 0;
  }
  if (lines_ == lines_per_second_) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  return std::exchange(left_out_, 0);
}

}  // namespace nibble::base
