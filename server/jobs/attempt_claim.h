// The process to which an attempt belongs. A cluster may start two pods for one attempt, and may leave a trainer
// running on a lost node after the server has given up the attempt: at most one process may write into the attempt's
// directory.
#pragma once
#include <string>

#include "absl/status/statusor.h"

namespace nibble::jobs {

// The file "claim" in the attempt's directory; it contains the holder. It is never removed by its holder. The server
// ends a claim by replacing the attempt's directory.
class AttemptClaim {
 public:
  // `holder`: unique to the process, for example the UID of its pod. AlreadyExists if another process has claimed the
  // attempt; the message names it. Other errors: those of files.h, such as ResourceExhausted (DISK_FULL).
  static absl::StatusOr<AttemptClaim> Take(const std::string& attempt_directory, std::string holder);

  // False once the file is gone or names another holder: the process must end and write nothing more. True if the file
  // cannot be read now.
  bool held() const;

 private:
  AttemptClaim(std::string path, std::string holder) : path_(std::move(path)), holder_(std::move(holder)) {}
  std::string path_, holder_;
};

// The holder of an attempt; "" if no process has claimed it, or if the claim cannot be read.
std::string ClaimHolder(const std::string& attempt_directory);

}  // namespace nibble::jobs
