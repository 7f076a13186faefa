#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::store {

// One server a state directory (docs/faults.md, R23): flock on a file that holds the owner's pid. The kernel lets go of it with
// the process, however that ends. Thread-compatible.
class StateLock {
 public:
  // FailedPrecondition (reason STATE_DIR_IN_USE) names the pid that holds it.
  static absl::StatusOr<std::unique_ptr<StateLock>> Acquire(const std::string& path);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace nibble::store
