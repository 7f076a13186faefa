// Errors of a call that is refused because too many others wait: ResourceExhausted (QUEUE_FULL), with the time after
// which a retry may help.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/base/worker_pool.h"

namespace nibble::base {

// Error returned when the queue of calls is full. `wait`: current waiting time of a call. The client is asked to retry
// after that time, which is raised to at least 100 ms and cut to at most a minute.
inline absl::Status TooManyWait(absl::Duration wait) {
  const absl::Duration retry = std::clamp(wait, absl::Milliseconds(100), absl::Minutes(1));
  return WithReason(absl::ResourceExhaustedError("too many calls are waiting"), "QUEUE_FULL",
                    {{"retry_ms", std::to_string(absl::ToInt64Milliseconds(retry))}});
}
// Error returned when one principal has reached its limit. `what`: a plural, such as "calls waiting for a model to
// load".
inline absl::Status TooManyOfPrincipal(const char* what, std::size_t max, absl::Duration wait) {
  auto metadata = ReasonMetadata(TooManyWait(wait));
  metadata["max"] = std::to_string(max);
  return WithReason(absl::ResourceExhaustedError(StrCat("this principal already has ", max, " ", what)), "QUEUE_FULL",
                    metadata);
}

// Error returned when `workers` refused a task of `principal`. The estimated wait is the time for which the call that
// began last had waited: by Little's law (waiting = rate * wait), this is the length of the queue divided by the
// service rate.
inline absl::Status TooManyWait(const WorkerPool& workers, const std::string& principal) {
  if (principal.empty() || workers.num_waiting(principal) < workers.max_waiting_each())
    return TooManyWait(workers.last_wait());
  return TooManyOfPrincipal("calls waiting", workers.max_waiting_each(), workers.last_wait());
}

}  // namespace nibble::base
