#include "server/jobs/controller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// Two callers and the scheduler move a job a bounded number of times before it is final.
constexpr int kMaxMoves = 16;
constexpr std::int64_t kMaxListed = 10'000;

absl::Status Draining() {
  return base::WithReason(absl::UnavailableError("the server is stopping"), "DRAINING");
}

}  // namespace

absl::Status JobController::CheckCapacity() {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t queued, database_.Count(JobState::kQueued));
  if (queued >= options_.max_queued) {
    return base::WithReason(absl::ResourceExhaustedError(StrCat(queued, " jobs are queued, the most there can be")),
                            "QUEUE_FULL", {{"max", std::to_string(options_.max_queued)}});
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t free, state_.files.FreeBytes(state_.layout.root()));
  if (free < options_.min_free_bytes) {
    return base::WithReason(absl::ResourceExhaustedError(StrCat("only ", free, " bytes are free on the server's disk")),
                            "DISK_FULL");
  }
  return absl::OkStatus();
}

absl::StatusOr<JobRecord> JobController::Submit(const JobSpec& asked, const std::string& request_id) {
  if (draining_) return Draining();
  NIBBLE_RETURN_IF_ERROR(Validate(asked));
  if (request_id.size() > 256) {
    return base::FieldError("request_id", StrCat("has ", request_id.size(), " bytes, wanted at most 256"));
  }
  const std::string body_digest = base::Sha256Hex(base::Dump(ToJson(asked)));

  std::lock_guard lock(submit_mutex_);
  if (!request_id.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(std::optional<JobRecord> known, database_.FindRequest(request_id, body_digest));
    if (known.has_value()) return Present(*std::move(known));
  }
  NIBBLE_RETURN_IF_ERROR(CheckCapacity());
  NIBBLE_RETURN_IF_ERROR(state_.models->Get(asked.base_model).status());
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset train, state_.datasets->Get(asked.train_dataset));
  NIBBLE_ASSIGN_OR_RETURN(const std::string format, base::GetString(train.meta, "format", "the dataset's meta.json", "text"));
  JobRecord job;
  job.id = base::NewId("job");
  job.spec = Resolve(asked, job.id, format, options_.default_device);
  job.created = clock_.Now();
  NIBBLE_RETURN_IF_ERROR(Validate(job.spec));  // What was left open may not fit what was said ("split" rows of a chat).
  if (options_.check_spec) NIBBLE_RETURN_IF_ERROR(options_.check_spec(job.spec));
  NIBBLE_RETURN_IF_ERROR(state_.models->Reserve(job.spec.output_model, job.id));
  const absl::Status held = HoldInputs(job);
  if (!held.ok()) {
    Release(job);
    return held;
  }
  Json fields = Json::object();
  fields["state"] = Name(JobState::kQueued);
  auto inserted =
      database_.Insert(job, request_id, body_digest, {0, std::nullopt, job.created, "state", std::move(fields)});
  if (!inserted.ok()) {
    Release(job);
    return inserted.status();
  }
  hub_.Notify(job.id);
  Wake();
  return Present(std::move(inserted->job));
}

absl::Status JobController::HoldInputs(const JobRecord& job) {
  std::vector<std::shared_ptr<const store::Pin>> pins;
  const std::string user = StrCat("job ", job.id);
  NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.models->PinModel(job.spec.base_model, user));
  NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.datasets->PinDataset(job.spec.train_dataset, user));
  if (!job.spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.datasets->PinDataset(job.spec.eval_dataset, user));
  }
  std::lock_guard lock(pins_mutex_);
  pins_[job.id] = std::move(pins);
  return absl::OkStatus();
}

void JobController::Release(const JobRecord& job) {
  std::vector<std::shared_ptr<const store::Pin>> pins;
  {
    std::lock_guard lock(pins_mutex_);
    const auto it = pins_.find(job.id);
    if (it != pins_.end()) {
      pins = std::move(it->second);
      pins_.erase(it);
    }
  }
  // A job that SUCCEEDED keeps its name until the model has it.
  if (job.state != JobState::kSucceeded) state_.models->Unreserve(job.spec.output_model, job.id);
}

absl::StatusOr<JobRecord> JobController::Present(JobRecord job) {
  if (job.state == JobState::kSucceeded && !job.published) {
    job.state = JobState::kRunning;  // SUCCEEDED says that the model is there: milliseconds from now.
    job.ended.reset();
  }
  if (job.state == JobState::kQueued) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<JobRecord> queued, database_.List({JobState::kQueued}, 0, kMaxListed));
    std::vector<QueuedJob> queue;
    for (const JobRecord& one : queued) queue.push_back({one.id, one.spec.run.priority, one.number, absl::ZeroDuration()});
    queue = Order(std::move(queue));
    const auto it = std::find_if(queue.begin(), queue.end(), [&](const QueuedJob& one) { return one.id == job.id; });
    job.progress["queue_position"] = it - queue.begin();
  }
  return job;
}

absl::StatusOr<JobRecord> JobController::Get(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(JobRecord job, database_.Get(id));
  return Present(std::move(job));
}

absl::StatusOr<std::vector<JobRecord>> JobController::List(const std::vector<JobState>& states, std::int64_t before,
                                                           std::int64_t limit) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs,
                          database_.List(states, before, std::clamp<std::int64_t>(limit, 1, kMaxListed)));
  for (JobRecord& job : jobs) {
    NIBBLE_ASSIGN_OR_RETURN(job, Present(std::move(job)));
  }
  return jobs;
}

absl::StatusOr<JobRecord> JobController::Move(const std::string& id, JobTrigger trigger) {
  for (int i = 0; i < kMaxMoves; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const JobRecord job, database_.Get(id));
    NIBBLE_ASSIGN_OR_RETURN(const JobState to, Next(job.state, trigger));
    Transition t;
    t.job_id = id;
    t.from = job.state;
    t.to = to;
    t.attempt = job.attempt;
    if (IsFinal(to)) t.ended = clock_.Now();
    Json fields = Json::object();
    fields["state"] = Name(to);
    fields["from"] = Name(job.state);
    fields["reason"] = "USER";
    t.events.push_back({job.attempt, std::nullopt, clock_.Now(), "state", std::move(fields)});
    NIBBLE_ASSIGN_OR_RETURN(const bool changed, database_.Apply(t));
    if (!changed) continue;
    NIBBLE_ASSIGN_OR_RETURN(const JobRecord after, database_.Get(id));
    if (IsFinal(to)) Release(after);
    if (to == JobState::kCancelling) supervisor_.RequestStop(id, job.attempt, Control::kCancel);
    if (to == JobState::kPausing) supervisor_.RequestStop(id, job.attempt, Control::kPause);
    hub_.Notify(id);
    Wake();
    return Present(after);
  }
  return absl::AbortedError(StrCat("job ", id, " is moved by others all the time; try again"));
}

absl::StatusOr<JobRecord> JobController::Cancel(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(JobRecord job, database_.Get(id));
  if (job.state == JobState::kCancelled || job.state == JobState::kCancelling) return job;
  return Move(id, JobTrigger::kCancel);
}

absl::StatusOr<JobRecord> JobController::Pause(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(JobRecord job, database_.Get(id));
  if (job.state == JobState::kPaused || job.state == JobState::kPausing) return job;
  return Move(id, JobTrigger::kPause);
}

absl::StatusOr<JobRecord> JobController::Resume(const std::string& id) {
  if (draining_) return Draining();
  NIBBLE_ASSIGN_OR_RETURN(JobRecord job, database_.Get(id));
  if (job.state == JobState::kQueued) return Present(std::move(job));
  return Move(id, JobTrigger::kResume);
}

absl::Status JobController::Delete(const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(database_.Delete(id));
  hub_.Notify(id);
  return state_.files.RemoveAll(state_.layout.job(id));
}

absl::StatusOr<std::vector<store::CheckpointInfo>> JobController::Checkpoints(const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(database_.Get(id).status());
  return store::ListAllCheckpoints(state_.files, state_.layout.attempts(id));
}

absl::StatusOr<JobController::EventPage> JobController::Events(const std::string& id, std::int64_t after,
                                                               std::int64_t limit) {
  // The job first: if it is final now, the events read afterwards are all there will be.
  NIBBLE_ASSIGN_OR_RETURN(const JobRecord job, database_.Get(id));
  EventPage page;
  NIBBLE_ASSIGN_OR_RETURN(page.events, database_.Events(id, after, std::clamp<std::int64_t>(limit, 1, kMaxListed)));
  const std::int64_t last = page.events.empty() ? after : page.events.back().sequence;
  const bool is_final = IsFinal(job.state) && (job.state != JobState::kSucceeded || job.published);
  page.ended = is_final && last >= job.last_sequence;
  return page;
}

absl::StatusOr<JobController::EventPage> JobController::WaitForEvents(const std::string& id, std::int64_t after,
                                                                      std::int64_t limit, absl::Duration timeout) {
  absl::StatusOr<EventPage> page;
  hub_.Wait(timeout, [&] {
    page = Events(id, after, limit);
    return !page.ok() || !page->events.empty() || page->ended;
  });
  return page;
}

std::unique_ptr<EventHub::Subscription> JobController::Subscribe(const std::string& id, EventHub::Callback callback) {
  return hub_.Subscribe(id, std::move(callback));
}

absl::StatusOr<ReportAnswer> JobController::IngestReport(const std::string& id, std::int64_t attempt,
                                                         const std::string& token, const std::vector<std::string>& lines) {
  return supervisor_.Ingest(id, attempt, token, lines);
}

}  // namespace nibble::jobs
