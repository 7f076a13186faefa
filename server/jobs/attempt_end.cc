// AttemptSupervisor: what the end of an attempt means for its job.
#include <algorithm>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/jobs/cancel_error.h"
#include "server/jobs/progress.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

using base::JoinPath;
using base::Json;
using base::StrCat;
using Kind = Verdict::Kind;

namespace {

// Enough, because each concurrent writer changes the job's state a bounded number of times.
constexpr int kMaxDecisions = 16;
// Wait before a failed settlement is retried: a full disk may stay full.
constexpr absl::Duration kSettleAgain = absl::Seconds(1);

StateEvent StateAfter(const StoredJob& job, JobState to, const Verdict& verdict) {
  StateEvent event{.state = Name(to), .from = Name(job.state)};
  if (verdict.reason.empty()) return event;
  event.reason = verdict.reason;
  event.message = verdict.message;
  return event;
}

std::string OutOfMemory(std::int64_t planned_bytes, std::int64_t limit_bytes) {
  const auto bytes = [](std::int64_t count) { return count > 0 ? StrCat(count, " bytes") : std::string("unknown"); };
  return StrCat("the kernel's OOM killer ended the trainer; planned memory of the job: ", bytes(planned_bytes),
                ", memory limit of server and trainers: ", bytes(limit_bytes));
}

}  // namespace

void AttemptSupervisor::SettleAll() {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(mutex_);
    std::swap(ended, ended_);
  }
  for (Ended& one : ended) {
    const bool early = clock_.Monotonic() < one.try_at;
    const absl::StatusOr<bool> settled = early ? false : Settle(one);
    if (settled.ok() && *settled) continue;
    if (!settled.ok()) {
      one.try_at = clock_.Monotonic() + kSettleAgain;
      base::LogError("cannot record the end of an attempt, will retry",
                     {{"job", one.live.job_id}, {"why", std::string(settled.status().message())}});
    }
    base::MutexLock lock(mutex_);
    ended_.push_back(std::move(one));
  }
}

absl::Status AttemptSupervisor::DrainJournal(Live& live) {
  while (true) {
    auto lines = live.journal.ReadNew();
    absl::Status status = lines.status();
    if (status.ok() && lines->empty()) return status;
    if (status.ok()) status = IngestLines(live, *lines);
    if (absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) {
      // The trainer wrote an invalid journal. Its end must still be settled. Warn once, even if settling is retried.
      if (live.warned_damaged) return absl::OkStatus();
      const WarningEvent warning{.reason = "JOURNAL_DAMAGED", .message = std::string(status.message())};
      NIBBLE_RETURN_IF_ERROR(Append(live, {ServerEvent(live.attempt, clock_.Now(), warning)}));
      live.warned_damaged = true;
      return absl::OkStatus();
    }
    NIBBLE_RETURN_IF_ERROR(status);
  }
}

absl::Status AttemptSupervisor::ResumeBackoff(const StoredJob& job) {
  // The event that requeued the job says how long to wait. A later event means that the wait was over or that a user
  // requeued the job.
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Event> last, database_.Events(job.id, job.last_sequence - 1, 1));
  if (last.empty()) return absl::OkStatus();
  const auto body = Decode(last.front().type, last.front().body);
  const auto* state = body.has_value() ? std::get_if<StateEvent>(&*body) : nullptr;
  if (state == nullptr) return absl::OkStatus();
  const absl::Duration wait = absl::Seconds(state->retry_in_s.value_or(0.0));
  // A clock that was set back must not lengthen the wait.
  const absl::Duration left = std::min(last.front().time + wait - clock_.Now(), wait);
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  base::MutexLock lock(mutex_);
  not_before_[job.id] = clock_.Monotonic() + left;
  return absl::OkStatus();
}

absl::StatusOr<AttemptSupervisor::Finding> AttemptSupervisor::Examine(const Ended& ended) const {
  const Live& live = ended.live;
  Finding finding;
  if (!ended.start_failure.ok()) {
    const std::string reason = base::Reason(ended.start_failure);
    // The base model or the data is damaged or missing: a retry cannot help.
    const bool damaged = reason == "ARTIFACT_CORRUPT", missing = absl::IsNotFound(ended.start_failure);
    if (damaged && observer_ != nullptr) observer_->OnArtifactDamaged(live.job_id);
    finding.verdict = {damaged || missing ? Kind::kFailed : Kind::kRetry, CodeName(ended.start_failure.code()),
                       damaged || reason == "DISK_FULL" ? reason : "START_FAILED",
                       std::string(ended.start_failure.message())};
    return finding;
  }
  auto outcome = ReadOutcome(state_.files, live.directory);
  if (outcome.ok()) {
    finding.outcome = *std::move(outcome);
  } else if (!store::SaysDamaged(outcome.status())) {
    return outcome.status();
  } else if (!absl::IsNotFound(outcome.status())) {
    base::LogWarning("cannot read an attempt's outcome",
                     {{"job", live.job_id}, {"why", std::string(outcome.status().message())}});
  }
  Verdict& verdict = finding.verdict;
  verdict = Judge(ended.exit, finding.outcome);
  if (verdict.kind == Kind::kSucceeded) return finding;
  if (live.hung && verdict.kind != Kind::kFailed) {
    // Counts even if the trainer wrote a checkpoint after SIGTERM: a job that hangs every time must run out of retries.
    verdict = {Kind::kRetry, "DEADLINE_EXCEEDED", "NO_PROGRESS", "stopped: the trainer made no progress for too long"};
  } else if (ended.out_of_memory && verdict.kind == Kind::kRetry && !finding.outcome.has_value()) {
    verdict = {Kind::kRetry, "RESOURCE_EXHAUSTED", "OUT_OF_MEMORY",
               OutOfMemory(live.memory_bytes, options_.memory_limit_bytes)};
  } else if (verdict.kind == Kind::kRetry && live.stop == Control::kPreempt) {
    verdict.kind = Kind::kRetryUncounted;  // It ended because the server preempted it, cleanly or not.
  }
  return finding;
}

absl::StatusOr<bool> AttemptSupervisor::Settle(Ended& ended) {
  Live& live = ended.live;
  if (!ended.examined && ended.output == nullptr) {
    if (ended.collected == nullptr) {
      if (state_.files.Exists(live.directory)) NIBBLE_RETURN_IF_ERROR(DrainJournal(live));
      ended.collected = StartCollecting(live);
    }
    if (!ended.collected->done()) return false;
    NIBBLE_RETURN_IF_ERROR(std::exchange(ended.collected, nullptr)->value());
    NIBBLE_ASSIGN_OR_RETURN(ended.finding, Examine(ended));
    if (ended.finding.verdict.kind == Kind::kSucceeded) NIBBLE_RETURN_IF_ERROR(VerifyOutput(ended));
  }
  if (ended.output != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const bool known, TakeOutput(ended));
    if (!known) return false;
  }
  ended.examined = true;
  for (int i = 0; i < kMaxDecisions; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const bool done, Decide(ended));
    if (done) return true;
  }
  return absl::InternalError(StrCat("the state of job ", live.job_id, " kept changing concurrently"));
}

std::shared_ptr<Deferred<absl::Status>> AttemptSupervisor::StartCollecting(const Live& live) const {
  return removals_.Start<absl::Status>(
      [this, id = live.job_id, attempt = live.attempt, directory = live.directory](const store::Cancelled&) {
        Collect(id, attempt);
        return state_.files.Exists(directory) ? store::CollectAttempt(state_.files, directory) : absl::OkStatus();
      });
}

absl::Status AttemptSupervisor::VerifyOutput(Ended& ended) {
  Live& live = ended.live;
  live.memory = nullptr;  // The trainer is gone, and hashing takes no budget: models may be loaded.
  const std::string output = JoinPath(live.directory, store::kOutputDirectory);
  ended.output = disk_.Start<Hashed>(
      [this, output](const store::Cancelled& cancelled) { return store::Verify(state_.files, output, cancelled); });
  {
    base::MutexLock lock(mutex_);
    outputs_[live.job_id] = ended.output;
  }
  // Read after RequestStop can find the output, so that a cancel takes effect either here or there.
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
  if (job.state == JobState::kCancelling) ended.output->Cancel();
  return absl::OkStatus();
}

absl::StatusOr<bool> AttemptSupervisor::TakeOutput(Ended& ended) {
  if (!ended.output->done()) return false;
  const Hashed manifest = ended.output->value();
  ended.output = nullptr;
  {
    base::MutexLock lock(mutex_);
    outputs_.erase(ended.live.job_id);
  }
  Finding& finding = ended.finding;
  if (manifest.ok()) {
    finding.output_digest = manifest->digest;
  } else if (absl::IsCancelled(manifest.status())) {
    // Only a cancel ends the hashing early, and the output of a cancelled job does not matter.
    finding.verdict = {Kind::kStopped, "", "", ""};
  } else if (!store::SaysDamaged(manifest.status())) {
    return manifest.status();
  } else {
    if (observer_ != nullptr) observer_->OnArtifactDamaged(ended.live.job_id);
    finding.verdict = {Kind::kRetry, "DATA_LOSS", "OUTPUT_INVALID",
                       StrCat("the trainer reported success, but: ", manifest.status().message())};
  }
  return true;
}

AttemptSupervisor::Decision AttemptSupervisor::DecisionOf(const StoredJob& job, const Ended& ended) const {
  const Finding& finding = ended.finding;
  const Live& live = ended.live;
  Decision decision{.transition = {}, .said = finding.verdict};
  Transition& t = decision.transition;
  t.job_id = job.id;
  t.from = job.state;
  t.attempt = job.attempt;
  if (job.state == JobState::kCancelling) {
    t.to = JobState::kCancelled;
    t.attempt_state = "CANCELLED";
    t.error = CancelledByUser(job.id, live.progress);
    decision.said = {Kind::kStopped, t.error->code, t.error->reason, t.error->message};
  } else if (decision.said.kind == Kind::kSucceeded && job.state == JobState::kPreparing) {
    t.to = JobState::kRunning;  // It never reported RUNNING; the next call makes it SUCCEEDED.
  } else if (decision.said.kind == Kind::kSucceeded) {
    t.to = JobState::kSucceeded;
    t.attempt_state = "SUCCEEDED";
    t.publish_digest = finding.output_digest;
    t.progress = live.progress;
    FinishProgress(*t.progress, finding.outcome->final);
  } else if (decision.said.kind == Kind::kFailed) {
    t.to = JobState::kFailed;
    t.attempt_state = "FAILED";
  } else if (job.state == JobState::kPausing) {
    t.to = JobState::kPaused;
    t.attempt_state = "PAUSED";
  } else if (decision.said.kind == Kind::kRetry) {
    const bool lost = live.adopted && ended.exit.kind == ExitStatus::Kind::kUnknown && !finding.outcome.has_value() &&
                      !ended.out_of_memory;
    t.retries = job.retries + 1;
    t.to = *t.retries > options_.retry.max_retries ? JobState::kFailed : JobState::kQueued;
    t.attempt_state = lost ? "LOST" : "FAILED";
    t.lost_in_row = lost ? job.lost_in_row + 1 : 0;
    // A LOST attempt is retried at once: the server's downtime was wait enough. From the second in a row the job backs
    // off: its trainer may be what kills the server, and an OOM kill of the whole container leaves no record.
    if (!lost) decision.wait = Backoff(*t.retries, options_.retry);
    if (*t.lost_in_row > 1) decision.wait = Backoff(*t.lost_in_row - 1, options_.retry);
  } else {
    t.to = JobState::kQueued;
    t.attempt_state = "PREEMPTED";
    // Not counted, but not at once either: repeated preemptions must not become a busy loop.
    if (!stopping_) decision.wait = Backoff(1, options_.retry);
  }
  if (t.to == JobState::kFailed) t.error = JobError{decision.said.code, decision.said.reason, decision.said.message};
  if (IsFinal(t.to)) t.ended = clock_.Now();
  if (t.to != JobState::kQueued) decision.wait = absl::ZeroDuration();
  return decision;
}

absl::StatusOr<bool> AttemptSupervisor::Decide(Ended& ended) {
  const Live& live = ended.live;
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
  if (job.attempt != live.attempt || !HasTrainer(job.state)) return true;  // Fenced off: already settled.
  Decision decision = DecisionOf(job, ended);
  Transition& t = decision.transition;
  // The publisher reports SUCCEEDED once the model exists.
  if (t.to != JobState::kSucceeded) {
    StateEvent event = StateAfter(job, t.to, decision.said);
    if (decision.wait > absl::ZeroDuration()) event.retry_in_s = absl::ToDoubleSeconds(decision.wait);
    t.events.push_back(ServerEvent(job.attempt, clock_.Now(), event));
  }
  NIBBLE_ASSIGN_OR_RETURN(const bool changed, database_.Apply(t));
  if (!changed || t.to == JobState::kRunning) return false;
  {
    base::MutexLock lock(mutex_);
    if (decision.wait > absl::ZeroDuration()) {
      not_before_[job.id] = clock_.Monotonic() + decision.wait;
    } else {
      not_before_.erase(job.id);
    }
  }
  // Not read from the database again: a failure after the transition would skip its consequences below.
  StoredJob after = job;
  after.state = t.to;
  after.retries = t.retries.value_or(job.retries);
  after.error = t.error;
  after.progress = t.progress.value_or(live.progress);
  after.output_digest = t.publish_digest.value_or("");
  after.ended = t.ended;
  Announce(after, *t.attempt_state, decision.said);
  return true;
}

void AttemptSupervisor::Announce(const StoredJob& job, const std::string& attempt_state, const Verdict& said) {
  const auto log = attempt_state == "FAILED" || attempt_state == "LOST" ? base::LogWarning : base::LogInfo;
  log("attempt ended", {{"job", job.id},
                        {"attempt", job.attempt},
                        {"ended", attempt_state},
                        {"state", Name(job.state)},
                        {"reason", said.reason}});
  if (observer_ != nullptr) {
    observer_->OnAttemptEnded(job, attempt_state);
    if (IsFinal(job.state) && job.state != JobState::kSucceeded) observer_->OnJobEnded(job);
  }
  if (job.state == JobState::kSucceeded) {
    if (absl::Status published = publisher_.Publish(job); !published.ok()) {
      base::LogError("cannot publish a trained model, will retry",
                     {{"job", job.id}, {"why", std::string(published.message())}});
    }
  }
  on_done_(job);  // Frees the job's names before watchers see its end.
  hub_.Notify(job.id);
}

}  // namespace nibble::jobs
