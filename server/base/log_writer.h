#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace nibble::base {

// Writes log lines from a bounded queue on its own thread, so that a stalled reader of stderr blocks no caller. Lines
// that do not fit in the queue are dropped and counted; once the reader is back, a warning gives their number. The last
// quarter of the queue is reserved for warnings and errors. Without a LogWriter each caller writes its own line. Only
// one LogWriter may exist at a time.
class LogWriter {
 public:
  static constexpr std::size_t kMaxBytes = 1 << 20;

  explicit LogWriter(std::size_t max_bytes = kMaxBytes);
  // Writes the queued lines, waiting at most two seconds. If a write still stalls then, later lines stay in the queue
  // or are dropped.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
};

// Waits at most `patience` until all queued lines are written. False: some are not.
bool FlushLog(absl::Duration patience);
// Number of lines dropped since the program started.
std::uint64_t LogLinesDropped();

}  // namespace nibble::base
