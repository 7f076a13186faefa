// Runs calls on workers, and refuses calls when too many wait.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/base/worker_pool.h"

namespace nibble::rpc {

// Error returned when the queue of calls is full. `wait`: current waiting time of a call. The client is asked to retry
// after that time, but not before 100 ms or after a minute.
inline absl::Status TooManyWait(absl::Duration wait) {
  const absl::Duration retry = std::clamp(wait, absl::Milliseconds(100), absl::Minutes(1));
  return base::WithReason(absl::ResourceExhaustedError("too many calls are waiting"), "QUEUE_FULL",
                          {{"retry_ms", std::to_string(absl::ToInt64Milliseconds(retry))}});
}
// Error returned when one principal has reached its limit. `what`: a plural, such as "calls waiting for a model to
// load".
inline absl::Status TooManyOfPrincipal(const char* what, std::size_t max, absl::Duration wait) {
  auto metadata = base::ReasonMetadata(TooManyWait(wait));
  metadata["max"] = std::to_string(max);
  return base::WithReason(absl::ResourceExhaustedError(base::StrCat("this principal already has ", max, " ", what)),
                          "QUEUE_FULL", metadata);
}

// Error returned when `workers` refused a task of `principal`. The estimated wait is that of the last call that began:
// by Little's law (waiting = rate * wait) it is the length of the queue divided by the service rate.
inline absl::Status TooManyWait(const base::WorkerPool& workers, const std::string& principal) {
  if (principal.empty() || workers.num_waiting(principal) < workers.max_waiting_each())
    return TooManyWait(workers.last_wait());
  return TooManyOfPrincipal("calls waiting", workers.max_waiting_each(), workers.last_wait());
}

// Runs `work` on one of `workers`. When their queue is full, ends the stream with QUEUE_FULL.
template <typename Stream>
void RunOnWorker(base::WorkerPool& workers, Stream& stream, std::function<void()> work) {
  const std::string principal = auth::FairnessKey(stream.call().principal());
  if (!workers.TryRun(std::move(work), principal)) stream.End(TooManyWait(workers, principal));
}

}  // namespace nibble::rpc
