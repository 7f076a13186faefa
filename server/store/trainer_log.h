// Reads the log of an attempt's trainer while the trainer writes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/layout.h"

namespace nibble::store {

// FindTail looks back at most this far, so that a call reads a bounded part of a large log.
inline constexpr std::int64_t kMaxTailBytes = 16 << 20;

// The log of one attempt. Each call opens the file again: a reader holds no file open between two calls, finds an
// attempt that was lost meanwhile (LoseAttempt), and sees what another machine wrote (NFS shows it to a new open).
// Follows no symbolic link below `jobs()` and opens regular files only, because the trainer owns the folder and must
// not choose which file of the server is read. Thread-safe.
//
// Errors of all methods: NotFound (ATTEMPT: the attempt has no folder, or its log is not a regular file), Internal (the
// disk), ResourceExhausted (no free file descriptor). An attempt whose trainer has not begun to write has a log of 0
// bytes.
class TrainerLog {
 public:
  TrainerLog(const StatePaths& paths, std::string job, std::int64_t attempt)
      : jobs_(paths.jobs()), job_(std::move(job)), attempt_(attempt), directory_(paths.attempt(job_, attempt)) {}

  absl::StatusOr<std::int64_t> Size() const;  // bytes
  // At most `max_bytes` from byte `offset` on. "": the log has no more bytes now.
  absl::StatusOr<std::string> Read(std::int64_t offset, std::size_t max_bytes) const;
  // The byte at which the last `lines` (>= 0) lines of the first `size` bytes begin. Bytes after the last line end are
  // a line. If these lines have more than kMaxTailBytes: size - kMaxTailBytes.
  absl::StatusOr<std::int64_t> FindTail(std::int64_t size, std::int64_t lines) const;

 private:
  class File;
  absl::StatusOr<File> Open() const;

  std::string jobs_;
  std::string job_;
  std::int64_t attempt_;
  std::string directory_;
};

// NotFound (ATTEMPT) with the message "attempt ATTEMPT of job JOB WHY".
absl::Status NoAttempt(const std::string& job, std::int64_t attempt, const std::string& why);

}  // namespace nibble::store
