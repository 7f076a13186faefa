// Detects readers of streams that are too slow.
#pragma once
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/error.h"

namespace nibble::rpc {

// Status of a stream whose reader was too slow.
inline absl::Status ReadsTooSlowly() {
  return base::WithReason(absl::ResourceExhaustedError("the client reads too slowly"), "SLOW_CONSUMER");
}

// A reader that is behind must take messages at a minimum rate, averaged over windows of `patience`, until it has
// caught up. An occasional message does not keep a request alive. One thread.
class SlowReader {
 public:
  // min_rate: messages per second. The reader must take at least one message per window in any case. 1e15 only keeps
  // the conversion to an integer defined.
  SlowReader(absl::Duration patience, double min_rate)
      : patience_(patience),
        wanted_(static_cast<std::uint64_t>(std::clamp(min_rate * absl::ToDoubleSeconds(patience), 1.0, 1e15))) {}

  // Call this when no message waits. The next window begins when the reader is behind again.
  void CaughtUp() { since_ = absl::InfiniteDuration(); }
  // Call this repeatedly while messages wait. taken: messages that the reader has taken since the stream began; behind:
  // the stream has no room for more; now: monotonic.
  bool TooSlow(std::uint64_t taken, bool behind, absl::Duration now) {
    if (since_ == absl::InfiniteDuration()) {
      if (!behind) return false;
      since_ = now;
      taken_ = taken;
    }
    if (now - since_ < patience_) return false;
    if (taken - taken_ < wanted_) return true;
    since_ = behind ? now : absl::InfiniteDuration();
    taken_ = taken;
    return false;
  }

 private:
  absl::Duration patience_;
  std::uint64_t wanted_;                             // messages per window
  absl::Duration since_ = absl::InfiniteDuration();  // start of the window; infinite: no window
  std::uint64_t taken_ = 0;                          // `taken` at the start of the window
};

}  // namespace nibble::rpc
