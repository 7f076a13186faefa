// Private to the runners.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "server/base/strings.h"

namespace nibble::jobs {

// The error of Runner::Adopt for a handle that another runner made.
inline absl::Status HandleOfOtherRunner(const std::string& attempt_directory, const std::string& handle) {
  return absl::FailedPreconditionError(
      base::StrCat("the trainer of ", attempt_directory, " is \"", handle,
                   "\", which this runner did not start: start nibbled with the --runner that began it"));
}

}  // namespace nibble::jobs
