#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::jobs {

// The states of a job and all edges between them (docs/life_of_a_job.md). Pure.
enum class JobState { kQueued, kPreparing, kRunning, kPausing, kPaused, kCancelling, kSucceeded, kFailed, kCancelled };
inline constexpr int kNumJobStates = 9;

// What moves a job.
enum class JobTrigger {
  kStart,      // admitted: an attempt begins
  kReady,      // its trainer has loaded everything and trains
  kSucceeded,  // its output is complete
  kFailed,     // it will not be tried again
  kRetry,      // the attempt is over, the job is not: back into the queue
  kStopped,    // the trainer of a job that was asked to pause or cancel is gone
  kPause,
  kResume,
  kCancel,
};
inline constexpr int kNumJobTriggers = 9;

const char* Name(JobState state);      // "QUEUED", as on the wire
const char* Name(JobTrigger trigger);  // "start"
absl::StatusOr<JobState> ParseJobState(std::string_view name);

bool IsFinal(JobState state);       // SUCCEEDED, FAILED, CANCELLED
bool HasTrainer(JobState state);    // PREPARING, RUNNING, PAUSING, CANCELLING
bool IsEdge(JobState from, JobState to);

// Where the trigger leads; FailedPrecondition (ILLEGAL_STATE) names state and trigger when it leads nowhere.
absl::StatusOr<JobState> Next(JobState state, JobTrigger trigger);

}  // namespace nibble::jobs
