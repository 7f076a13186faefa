#pragma once
#include <optional>
#include <string>

#include "server/jobs/attempt.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

// What the end of an attempt means, by the table of docs/life_of_a_job.md. Pure. The outcome, where there is one, tells what happened; the
// exit code tells whether to go on. A trainer that was adopted after a restart has no exit code: its outcome carries one.
struct Verdict {
  enum class Kind {
    kSucceeded,       // the output still has to be verified
    kStopped,         // it stopped because it was told to (cancelled, paused)
    kFailed,          // never again
    kRetry,           // again, counted
    kRetryUncounted,  // again, it was only interrupted
  };
  Kind kind = Kind::kRetry;
  // kFailed, kRetry: for Job.error and the warning event.
  std::string code;    // "INTERNAL"
  std::string reason;  // "TRAINER_SIGNAL"
  std::string message;
};

Verdict Judge(const ExitStatus& exit, const std::optional<Outcome>& outcome);

}  // namespace nibble::jobs
