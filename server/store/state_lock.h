#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::store {

// Allows one server per state directory (docs/faults.md, R23): flock on a file that contains the owner's pid. The
// kernel releases the lock when the process ends, however it ends. Thread-compatible.
class StateLock {
 public:
  // FailedPrecondition (reason STATE_DIR_IN_USE) names the pid of the process that holds the lock.
  static absl::StatusOr<std::unique_ptr<StateLock>> Acquire(const std::string& path);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace nibble::store
