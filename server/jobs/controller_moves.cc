// JobController: changes of a job that users ask for.
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/cancel_error.h"
#include "server/jobs/controller.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// Two callers and the scheduler move a job a bounded number of times before it is final.
constexpr int kMaxMoves = 16;

}  // namespace

absl::StatusOr<StoredJob> JobController::Move(const std::string& id, JobTrigger trigger, const IfEtag& etag,
                                              bool keep_checkpoint) {
  for (int i = 0; i < kMaxMoves; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(id));
    NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
    const absl::StatusOr<JobState> next = Next(job.state, trigger);
    if (!next.ok()) return base::About(next.status(), id);
    const JobState to = *next;
    Transition t;
    t.job_id = id;
    t.from = job.state;
    t.to = to;
    t.attempt = job.attempt;
    t.keep_checkpoint = keep_checkpoint;
    if (IsFinal(to)) t.ended = clock_.Now();
    StateEvent event{.state = Name(to), .from = Name(job.state), .reason = "USER"};
    if (to == JobState::kCancelled) {
      t.error = CancelledByUser(id, job.progress);
      event.message = t.error->message;
    }
    t.events.push_back(ServerEvent(job.attempt, clock_.Now(), event));
    NIBBLE_ASSIGN_OR_RETURN(const bool changed, database_.Apply(t));
    if (!changed) continue;
    StoredJob after = job;
    after.state = to;
    after.ended = t.ended;
    if (IsFinal(to)) {
      if (observer_ != nullptr) observer_->OnJobEnded(after);
      Release(after);
    }
    if (job.state == JobState::kPlanning) planning_.Cancel(id);
    if (job.state == JobState::kQueued) supervisor_.AbandonStart(id);
    if (to == JobState::kCancelling) {
      supervisor_.RequestStop(id, job.attempt, keep_checkpoint ? Control::kCancelKeeping : Control::kCancel);
    }
    if (to == JobState::kPausing) supervisor_.RequestStop(id, job.attempt, Control::kPause);
    hub_.Notify(id);
    Wake();
    return Get(id);
  }
  return absl::AbortedError(StrCat("job ", id, "'s state kept changing concurrently; try again"));
}

absl::StatusOr<StoredJob> JobController::Cancel(const std::string& id, const IfEtag& etag, bool keep_checkpoint) {
  NIBBLE_ASSIGN_OR_RETURN(StoredJob job, database_.Get(id));
  if (job.state == JobState::kCancelled || job.state == JobState::kCancelling) {
    NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
    return Present(std::move(job));
  }
  return Move(id, JobTrigger::kCancel, etag, keep_checkpoint);
}

absl::StatusOr<StoredJob> JobController::Pause(const std::string& id, const IfEtag& etag) {
  NIBBLE_ASSIGN_OR_RETURN(StoredJob job, database_.Get(id));
  if (job.state == JobState::kPaused || job.state == JobState::kPausing) {
    NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
    return Present(std::move(job));
  }
  return Move(id, JobTrigger::kPause, etag);
}

absl::StatusOr<StoredJob> JobController::Resume(const std::string& id, const IfEtag& etag) {
  if (draining_) return base::WithReason(absl::UnavailableError("the server is stopping"), "DRAINING");
  NIBBLE_ASSIGN_OR_RETURN(StoredJob job, database_.Get(id));
  if (job.state == JobState::kQueued) {
    NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
    return Present(std::move(job));
  }
  return Move(id, JobTrigger::kResume, etag);
}

absl::StatusOr<StoredJob> JobController::Checkpoint(const std::string& id, const IfEtag& etag) {
  for (int i = 0; i < kMaxMoves; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(StoredJob job, database_.Get(id));
    NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
    if (job.state == JobState::kPausing) return Present(std::move(job));  // A pause writes a checkpoint anyway.
    if (job.state != JobState::kRunning && job.state != JobState::kPreparing) {
      return base::WithReason(absl::FailedPreconditionError(
                                  StrCat("a job that is ", Name(job.state), " has no trainer to write a checkpoint")),
                              "ILLEGAL_STATE", {{"name", id}, {"state", Name(job.state)}});
    }
    NIBBLE_ASSIGN_OR_RETURN(const bool asked, supervisor_.RequestCheckpoint(id, job.attempt));
    if (asked) return Present(std::move(job));
    if (supervisor_.verifying(id)) {
      return base::WithReason(
          absl::FailedPreconditionError("the trainer of the job has ended, and its output is being verified"),
          "ILLEGAL_STATE", {{"name", id}, {"state", Name(job.state)}});
    }
    Wake();  // Its trainer has just ended.
  }
  return absl::AbortedError(StrCat("the trainer of job ", id, " is just ending; try again"));
}

absl::Status JobController::DeleteExpired(const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(database_.Delete(id, {}));
  hub_.Notify(id);
  StartRemoving(id);
  return absl::OkStatus();
}

void JobController::StartRemoving(const std::string& id) {
  removals_.Start<absl::Status>([this, id](const store::Cancelled&) {
    absl::Status removed = state_.files.RemoveAll(state_.paths.job(id));
    if (!removed.ok()) {
      base::LogWarning("cannot remove the files of a deleted job",
                       {{"job", id}, {"why", std::string(removed.message())}});
    }
    return removed;
  });
}

absl::Status JobController::Delete(const std::string& id, const IfEtag& etag) {
  NIBBLE_RETURN_IF_ERROR(database_.Delete(id, etag));
  hub_.Notify(id);
  return state_.files.RemoveAll(state_.paths.job(id));
}

}  // namespace nibble::jobs
