#include "server/kube/backoff.h"

#include <algorithm>

namespace nibble::kube {

absl::Duration Backoff::Next(std::optional<absl::Duration> retry_after) {
  absl::Duration pause = min_;
  for (int i = 0; i < num_failures_ && pause < max_; ++i) pause *= 2;
  ++num_failures_;
  const double fraction = static_cast<double>(random_() >> 11) * 0x1p-53;  // 53 random bits: in [0, 1)
  pause = std::min(pause, max_) * (1 - fraction / 2);
  return std::max(pause, retry_after.value_or(absl::ZeroDuration()));
}

}  // namespace nibble::kube
