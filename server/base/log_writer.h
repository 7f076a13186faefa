#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace nibble::base {

// While one lives, a thread of its own writes the log's lines, from a bounded queue. A reader of stderr that stalls then costs lines and
// holds up no caller: what the queue has no room for is dropped and counted, and a warning says how many once the reader is back. The
// last quarter of the queue is kept for warnings and errors. Without a LogWriter each caller writes its own line. One at a time.
class LogWriter {
 public:
  static constexpr std::size_t kMaxBytes = 1 << 20;

  explicit LogWriter(std::size_t max_bytes = kMaxBytes);
  // Writes what is queued, waiting at most two seconds. If a write still stalls then, later lines stay in the queue or are dropped.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
};

// Waits until all queued lines are written, but no longer than `patience`. False: some are not.
bool FlushLog(absl::Duration patience);
// Since the program began.
std::uint64_t LogLinesDropped();

}  // namespace nibble::base
