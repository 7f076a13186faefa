#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::jobs {

// The states of a job (docs/life_of_a_job.md). job_state.cc lists every edge between states. The functions below are
// pure.
enum class JobState {
  kPlanning,
  kQueued,
  kPreparing,
  kRunning,
  kPausing,
  kPaused,
  kCancelling,
  kSucceeded,
  kFailed,
  kCancelled
};
inline constexpr int kNumJobStates = 10;

// Triggers that change a job's state.
enum class JobTrigger {
  kPlanned,    // its data is valid, and its needs are known
  kStart,      // admitted: an attempt begins
  kReady,      // its trainer has loaded everything and trains
  kSucceeded,  // its output is complete
  kFailed,     // it will not be retried
  kRetry,      // the attempt has ended but the job has not: it returns to the queue
  kStopped,    // the trainer of a pausing or cancelling job is gone
  kPause,
  kResume,
  kCancel,
};
inline constexpr int kNumJobTriggers = 10;

const char* Name(JobState state);      // "QUEUED", as on the wire
const char* Name(JobTrigger trigger);  // "start"
absl::StatusOr<JobState> ParseJobState(std::string_view name);

bool IsFinal(JobState state);        // SUCCEEDED, FAILED, CANCELLED
std::vector<JobState> OpenStates();  // all that are not final
bool HasTrainer(JobState state);     // PREPARING, RUNNING, PAUSING, CANCELLING
bool IsEdge(JobState from, JobState to);

// The state that the trigger leads to. FailedPrecondition (ILLEGAL_STATE) names state and trigger if there is no such
// edge.
absl::StatusOr<JobState> Next(JobState state, JobTrigger trigger);

}  // namespace nibble::jobs
