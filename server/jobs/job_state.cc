#include "server/jobs/job_state.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;
using enum JobState;

namespace {

constexpr const char* kStateNames[kNumJobStates] = {"PLANNING", "QUEUED",     "PREPARING", "RUNNING", "PAUSING",
                                                    "PAUSED",   "CANCELLING", "SUCCEEDED", "FAILED",  "CANCELLED"};
constexpr const char* kTriggerNames[kNumJobTriggers] = {"plan",  "start", "ready", "succeed", "fail",
                                                        "retry", "stop",  "pause", "resume",  "cancel"};

struct Edge {
  JobState from;
  JobTrigger trigger;
  JobState to;
};

constexpr Edge kEdges[] = {
    {kPlanning, JobTrigger::kPlanned, kQueued},     {kPlanning, JobTrigger::kFailed, kFailed},
    {kPlanning, JobTrigger::kCancel, kCancelled},   {kQueued, JobTrigger::kStart, kPreparing},
    {kQueued, JobTrigger::kPause, kPaused},         {kQueued, JobTrigger::kFailed, kFailed},
    {kQueued, JobTrigger::kCancel, kCancelled},     {kPreparing, JobTrigger::kReady, kRunning},
    {kPreparing, JobTrigger::kRetry, kQueued},      {kPreparing, JobTrigger::kFailed, kFailed},
    {kPreparing, JobTrigger::kCancel, kCancelling}, {kRunning, JobTrigger::kSucceeded, kSucceeded},
    {kRunning, JobTrigger::kFailed, kFailed},       {kRunning, JobTrigger::kRetry, kQueued},
    {kRunning, JobTrigger::kPause, kPausing},       {kRunning, JobTrigger::kCancel, kCancelling},
    {kPausing, JobTrigger::kStopped, kPaused},      {kPausing, JobTrigger::kSucceeded, kSucceeded},
    {kPausing, JobTrigger::kFailed, kFailed},       {kPausing, JobTrigger::kRetry, kQueued},
    {kPausing, JobTrigger::kCancel, kCancelling},   {kPaused, JobTrigger::kResume, kQueued},
    {kPaused, JobTrigger::kCancel, kCancelled},     {kCancelling, JobTrigger::kStopped, kCancelled},
};

}  // namespace

const char* Name(JobState state) { return kStateNames[static_cast<int>(state)]; }
const char* Name(JobTrigger trigger) { return kTriggerNames[static_cast<int>(trigger)]; }

absl::StatusOr<JobState> ParseJobState(std::string_view name) {
  for (int i = 0; i < kNumJobStates; ++i) {
    if (name == kStateNames[i]) return static_cast<JobState>(i);
  }
  return absl::InvalidArgumentError(StrCat("unknown job state \"", name.substr(0, 64), "\""));
}

bool IsFinal(JobState state) { return state == kSucceeded || state == kFailed || state == kCancelled; }

std::vector<JobState> OpenStates() {
  std::vector<JobState> open;
  for (int i = 0; i < kNumJobStates; ++i) {
    if (const auto state = static_cast<JobState>(i); !IsFinal(state)) open.push_back(state);
  }
  return open;
}

bool HasTrainer(JobState state) {
  return state == kPreparing || state == kRunning || state == kPausing || state == kCancelling;
}

namespace {

// In errors. Users pause, resume and cancel; the other triggers are the server's own.
std::string VerbOf(JobTrigger trigger) {
  switch (trigger) {
    case JobTrigger::kPause: return "be paused";
    case JobTrigger::kResume: return "be resumed";
    case JobTrigger::kCancel: return "be cancelled";
    default: return Name(trigger);
  }
}

}  // namespace

bool IsEdge(JobState from, JobState to) {
  for (const Edge& edge : kEdges) {
    if (edge.from == from && edge.to == to) return true;
  }
  return false;
}

absl::StatusOr<JobState> Next(JobState state, JobTrigger trigger) {
  for (const Edge& edge : kEdges) {
    if (edge.from == state && edge.trigger == trigger) return edge.to;
  }
  const char* const advice = trigger != JobTrigger::kPause ? ""
                             : state == kPlanning          ? "; retry when it is QUEUED"
                             : state == kPreparing         ? "; retry when it is RUNNING"
                                                           : "";
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("a job that is ", Name(state), " cannot ", VerbOf(trigger), advice)),
      "ILLEGAL_STATE", {{"state", Name(state)}, {"trigger", Name(trigger)}});
}

}  // namespace nibble::jobs
