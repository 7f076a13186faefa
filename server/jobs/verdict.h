#pragma once
#include <optional>
#include <string>

#include "server/jobs/attempt.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

// The meaning of an attempt's end, by the table in docs/life_of_a_job.md. Pure. The outcome, if any, says what
// happened; the exit code says whether to retry. The exit code of an adopted trainer is unknown, so its outcome carries
// one.
struct Verdict {
  enum class Kind {
    kSucceeded,       // the output still has to be verified
    kStopped,         // it stopped as requested, by this server or by a cluster (then with a reason)
    kFailed,          // not retried
    kRetry,           // retried; the retry counts
    kRetryUncounted,  // retried; does not count, because it was only interrupted
  };
  Kind kind = Kind::kRetry;
  // For Job.error and the state event; may be "".
  std::string code;    // "INTERNAL"
  std::string reason;  // "TRAINER_SIGNAL"
  std::string message;
};

Verdict Judge(const TrainerEnd& end, const std::optional<Outcome>& outcome);

}  // namespace nibble::jobs
