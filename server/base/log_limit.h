#pragma once
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::base {

// Limits log lines that clients can cause, so that they cannot flood the log. Thread-safe.
class LogLimit {
 public:
  explicit LogLimit(int lines_per_second) : lines_per_second_(lines_per_second) {}

  // Asks to write a line at `now`, on the monotonic clock. nullopt: the lines of this second are used up. Otherwise:
  // the number of lines left out since the last line that was written.
  std::optional<std::int64_t> Take(absl::Duration now);

 private:
  const int lines_per_second_;
  Mutex mutex_;
  absl::Duration second_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  int lines_ ABSL_GUARDED_BY(mutex_) = 0;  // written in that second
  std::int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble::base
