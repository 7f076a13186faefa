#include "server/jobs/controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/cancel_error.h"
#include "server/jobs/journal.h"
#include "server/store/job_space.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// Maximum number of tries to change a job whose state keeps changing concurrently.
constexpr int kMaxMoves = 16;

constexpr std::int64_t kMaxListed = 10'000;  // jobs or events in one answer

absl::Status Draining() { return base::WithReason(absl::UnavailableError("the server is stopping"), "DRAINING"); }

// The key under which the database remembers a request. An owner's name is unique only within a tenant. Names of
// owners and tenants hold no line feed, but a request id may. Without a tenant the key has the format from before
// tenants were part of keys.
std::string RequestKey(const std::string& request_id, const JobController::Submission& submission) {
  if (request_id.empty() || submission.owner.empty()) return request_id;
  if (submission.tenant.empty()) return StrCat(submission.owner, "\n", request_id);
  return StrCat("\n", submission.tenant, "\n", submission.owner, "\n", request_id);
}

// Metadata "retry_ms": the expected time until a job ends and frees its place. It is the shortest ETA reported by a
// trainer, minus the time since that report; one minute if no trainer has reported yet. Only the jobs of `owner` count;
// "": all jobs. At least a second and at most an hour, because a job may fail or be cancelled earlier.
absl::StatusOr<std::string> RetryMs(Database& database, absl::Time now, const std::string& owner,
                                    const std::string& tenant) {
  using enum JobState;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredJob> live,
                          database.ListAll({kPreparing, kRunning, kPausing, kCancelling}));
  absl::Duration shortest = absl::InfiniteDuration();
  for (const StoredJob& job : live) {
    if (!owner.empty() && (job.owner != owner || job.tenant != tenant)) continue;
    const double eta_s = base::GetNumber(job.progress, "eta_s", "progress", -1.0).value_or(-1.0);
    const std::string text = base::GetString(job.progress, "update_time", "progress", "").value_or("");
    absl::Time reported;
    if (eta_s < 0 || !absl::ParseTime(absl::RFC3339_full, text, &reported, nullptr)) continue;
    shortest = std::min(shortest, absl::Seconds(eta_s) - (now - reported));
  }
  const absl::Duration wait = shortest == absl::InfiniteDuration() ? absl::Minutes(1) : shortest;
  return std::to_string(absl::ToInt64Milliseconds(std::clamp<absl::Duration>(wait, absl::Seconds(1), absl::Hours(1))));
}

struct LatestEval {
  std::int64_t step = -1;  // -1: not evaluated yet
  double loss = 0;
};

LatestEval LatestEvalOf(const StoredJob& job) {
  const auto eval = job.progress.find("latest_eval");
  if (eval == job.progress.end() || !eval->is_object() || !eval->contains("eval_loss")) return {};
  return {base::GetInt(*eval, "step", "latest_eval").value_or(-1),
          base::GetNumber(*eval, "eval_loss", "latest_eval").value_or(0)};
}

}  // namespace

JobController::JobController(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                             ControllerOptions options, JobObserver* observer)
    : state_(state),
      database_(database),
      clock_(clock),
      options_(std::move(options)),
      publisher_(state, database, clock, hub_, observer),
      supervisor_(state, database, runner, clock, options_, hub_, publisher_, disk_, removals_, observer,
                  [this](const StoredJob& job) {
                    if (IsFinal(job.state)) Release(job);
                    scheduler_.Wake();
                  }),
      observer_(observer),
      scheduler_(state, database, clock, options_, hub_, publisher_, supervisor_, disk_,
                 [this](const std::string& id) { return DeleteExpired(id); }),
      planning_(options_.planners,
                [this](const std::string& id, const base::CancelToken& cancel) { return Plan(id, cancel); }),
      disk_([this] { scheduler_.Wake(); }),
      removals_([this] { scheduler_.Wake(); }) {}

absl::StatusOr<std::unique_ptr<JobController>> JobController::Open(store::StateDirectory& state, Database& database,
                                                                   Runner& runner, base::Clock& clock,
                                                                   ControllerOptions options, JobObserver* observer) {
  std::unique_ptr<JobController> controller(
      new JobController(state, database, runner, clock, std::move(options), observer));
  NIBBLE_RETURN_IF_ERROR(controller->Recover());
  return controller;
}

absl::Status JobController::ForgetRequests() {
  absl::Status forgotten = database_.ForgetRequests(clock_.Now() - options_.request_id_kept);
  if (base::Reason(forgotten) != "DISK_FULL") return forgotten;
  base::LogWarning("old request ids are kept for now", {{"why", std::string(forgotten.message())}});
  return absl::OkStatus();
}

absl::Status JobController::Recover() {
  NIBBLE_RETURN_IF_ERROR(ForgetRequests());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredJob> unpublished, database_.ListUnpublished());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredJob> open, database_.ListAll(OpenStates()));
  // Reserve all names first, before anything else can take one.
  for (const auto* jobs : {&unpublished, &open}) {
    for (const StoredJob& job : *jobs) {
      // The model of an unpublished job may already be stored under this name. Reserve then fails, which is no error.
      const absl::Status reserved = state_.models->Reserve(job.spec.output_model, job.id, job.tenant);
      if (!reserved.ok() && jobs == &open) {
        base::LogWarning("the output name of a job is taken",
                         {{"job", job.id}, {"why", std::string(reserved.message())}});
      }
    }
  }
  publisher_.PublishAll(unpublished);
  for (const StoredJob& job : open) {
    if (absl::Status held = HoldInputs(job); !held.ok()) {
      // The start of the job will fail and report it.
      base::LogWarning("an input of a job is missing", {{"job", job.id}, {"why", std::string(held.message())}});
    }
    supervisor_.Collect(job.id, HasTrainer(job.state) ? job.attempt : 0);
    if (HasTrainer(job.state)) NIBBLE_RETURN_IF_ERROR(supervisor_.Adopt(job));
    if (job.state == JobState::kQueued) NIBBLE_RETURN_IF_ERROR(supervisor_.ResumeBackoff(job));
  }
  supervisor_.Recovered();
  CollectDeleted();
  // Oldest first. This step comes last, because from here on other threads change jobs too.
  for (auto job = open.rbegin(); job != open.rend(); ++job) {
    if (job->state == JobState::kPlanning) AddToPlanning(*job);
  }
  return absl::OkStatus();
}

// Removes the files of jobs whose deletion the last server did not finish.
void JobController::CollectDeleted() {
  const auto names = state_.files.List(state_.paths.jobs());
  const auto ids = database_.Ids();
  if (!names.ok() || !ids.ok()) return;
  for (const std::string& id : *names) {
    if (ids->contains(id)) continue;
    base::LogWarning("removing files of a job that no longer exists", {{"job", id}});
    StartRemoving(id);
  }
}

void JobController::Tick() {
  planning_.AwaitIdle();
  Round();
  const auto await_disk = [this] {
    disk_.AwaitIdle();
    removals_.AwaitIdle();
  };
  for (await_disk(); supervisor_.on_disk(); await_disk()) Round();
}

void JobController::Run(ReportEndpoint endpoint) {
  supervisor_.set_report_endpoint(std::move(endpoint));
  scheduler_.Run();
}

void JobController::Shutdown(absl::Duration grace) {
  scheduler_.Drain();
  scheduler_.Stop();
  planning_.Stop();  // The jobs stay PLANNING: the next server plans them.
  scheduler_.StopTrainers(grace);
  hub_.Close();
}

JobController::~JobController() {
  scheduler_.Stop();
  planning_.Stop();
  disk_.Stop();
  removals_.Stop();
}

absl::Status JobController::CheckCapacity(const std::string& owner, const std::string& tenant) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t planning, database_.Count(JobState::kPlanning));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t waiting, database_.Count(JobState::kQueued));
  const std::int64_t queued = planning + waiting;
  if (queued >= options_.max_queued) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string retry_ms, RetryMs(database_, clock_.Now(), "", ""));
    return base::WithReason(absl::ResourceExhaustedError(StrCat(queued, " jobs are planning or queued, the maximum")),
                            "QUEUE_FULL", {{"max", std::to_string(options_.max_queued)}, {"retry_ms", retry_ms}});
  }
  if (!owner.empty() && options_.max_open_per_owner > 0) {
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t open, database_.CountOpen(owner, tenant));
    if (open >= options_.max_open_per_owner) {
      NIBBLE_ASSIGN_OR_RETURN(const std::string retry_ms, RetryMs(database_, clock_.Now(), owner, tenant));
      return base::WithReason(
          absl::ResourceExhaustedError(StrCat(owner, " has ", open, " jobs that have not ended, the maximum")),
          "TENANT_QUOTA", {{"max", std::to_string(options_.max_open_per_owner)}, {"retry_ms", retry_ms}});
    }
  }
  return base::CheckSpace(state_.files, state_.paths.root(), state_.min_free_bytes);
}

absl::StatusOr<PlannedMemory> JobController::PlanMemory(const StoredJob& job, const base::CancelToken& cancel) {
  std::optional<JobStart> start;
  if (!StartCheckpoint(job.spec).empty()) {
    NIBBLE_ASSIGN_OR_RETURN(start, ReadStart(state_.files, state_.paths, job.id));
    const absl::Status good = VerifyStart(*start, cancel);
    if (absl::IsDataLoss(good) && observer_ != nullptr) observer_->OnArtifactDamaged(job.id);
    NIBBLE_RETURN_IF_ERROR(good);
  }
  if (!options_.plan_memory) return PlannedMemory{};
  NIBBLE_ASSIGN_OR_RETURN(PlannedMemory need, options_.plan_memory(job.spec, cancel));
  if (start.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckStepsAfter(*start, job.spec, need.max_steps));
    need.disk_bytes += static_cast<std::int64_t>(start->bytes);
  }
  NIBBLE_RETURN_IF_ERROR(store::CheckPlannedSpace(state_.files, state_.paths, state_.min_free_bytes, need.disk_bytes));
  if (!NeedsMoreThanThereIs(need.bytes, options_.queue)) return need;
  const std::int64_t have = options_.queue.memory_bytes;
  return base::WithReason(absl::ResourceExhaustedError(NeedsMoreMemoryText(job.spec, need.bytes, have)),
                          "OUT_OF_DEVICE_MEMORY",
                          {{"need", std::to_string(need.bytes)}, {"have", std::to_string(have)}, {"plan", need.pools}});
}

absl::StatusOr<std::optional<StoredJob>> JobController::FindOrAdmit(const std::string& request_id,
                                                                    const std::string& body_digest,
                                                                    const std::string& owner,
                                                                    const std::string& tenant) {
  if (!request_id.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(std::optional<StoredJob> known, database_.FindRequest(request_id, body_digest));
    if (known.has_value()) return known;
  }
  NIBBLE_RETURN_IF_ERROR(CheckCapacity(owner, tenant));
  return std::nullopt;
}

absl::StatusOr<StoredJob> JobController::Submit(const JobSpec& asked, const std::string& id_of_request,
                                                const Submission& submission) {
  if (scheduler_.draining()) return Draining();
  NIBBLE_RETURN_IF_ERROR(Validate(asked));
  NIBBLE_RETURN_IF_ERROR(base::CheckRequestId(id_of_request));
  const std::string request_id = RequestKey(id_of_request, submission);
  const std::string body_digest =
      submission.body_digest.empty() ? base::Sha256Hex(base::Dump(ToJson(asked))) : submission.body_digest;
  {
    base::MutexLock lock(submit_mutex_);
    NIBBLE_RETURN_IF_ERROR(ForgetRequests());
    NIBBLE_ASSIGN_OR_RETURN(std::optional<StoredJob> known,
                            FindOrAdmit(request_id, body_digest, submission.owner, submission.tenant));
    if (known.has_value()) return Present(*std::move(known));
  }
  StoredJob job;
  job.id = base::NewId("job");
  job.state = JobState::kPlanning;
  job.spec = asked;
  job.created = clock_.Now();
  job.owner = submission.owner;
  job.tenant = submission.tenant;
  // Pinned before they are read, so that the planned inputs are the ones that are trained on.
  NIBBLE_RETURN_IF_ERROR(HoldInputs(job));
  auto queued = [&]() -> absl::StatusOr<StoredJob> {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset train, state_.datasets->Get(asked.train_dataset));
    NIBBLE_ASSIGN_OR_RETURN(const std::string format,
                            base::GetString(train.meta, "format", "the dataset's meta.json", "text"));
    job.spec = Resolve(asked, job.id, format, options_.default_device);
    NIBBLE_RETURN_IF_ERROR(Validate(job.spec));  // Defaults may conflict with given fields ("split" rows of a chat).
    if (options_.check_without_rows) NIBBLE_RETURN_IF_ERROR(options_.check_without_rows(job.spec));
    NIBBLE_ASSIGN_OR_RETURN(job.digests, MakeJobDigests(state_, job.spec, options_.code_digest));
    NIBBLE_ASSIGN_OR_RETURN(const std::optional<JobStart> start, FindStart(job));
    // Kept before the job is acknowledged: the checkpoint may be removed at any time.
    if (start.has_value()) NIBBLE_RETURN_IF_ERROR(KeepStart(state_.files, state_.paths, job.id, *start));
    return Record(job, request_id, body_digest);
  }();
  if (!queued.ok() || queued->id != job.id) {
    Release(job);
    if (!StartCheckpoint(job.spec).empty()) StartRemoving(job.id);
  }
  NIBBLE_RETURN_IF_ERROR(queued.status());
  return Present(*std::move(queued));
}

absl::StatusOr<StoredJob> JobController::Record(const StoredJob& job, const std::string& request_id,
                                                const std::string& body_digest) {
  base::MutexLock lock(submit_mutex_);
  if (scheduler_.draining()) return Draining();
  // Checked again: the same request or others may have arrived while this one was checked.
  NIBBLE_ASSIGN_OR_RETURN(std::optional<StoredJob> known, FindOrAdmit(request_id, body_digest, job.owner, job.tenant));
  if (known.has_value()) return *std::move(known);
  NIBBLE_RETURN_IF_ERROR(state_.models->Reserve(job.spec.output_model, job.id, job.tenant));
  const NewEvent created = ServerEvent(0, job.created, StateEvent{.state = Name(job.state)});
  NIBBLE_ASSIGN_OR_RETURN(Database::Inserted inserted, database_.Insert(job, request_id, body_digest, created));
  if (observer_ != nullptr) observer_->OnJobCreated(inserted.job);
  hub_.Notify(job.id);
  AddToPlanning(inserted.job);
  return std::move(inserted.job);
}

void JobController::AddToPlanning(const StoredJob& job) { planning_.Add(job.id, StrCat(job.tenant, "\n", job.owner)); }

bool JobController::Plan(const std::string& id, const base::CancelToken& cancel) {
  const absl::StatusOr<StoredJob> job = database_.Get(id);
  if (absl::IsNotFound(job.status()) || (job.ok() && job->state != JobState::kPlanning))
    return true;  // Cancelled meanwhile.
  if (!job.ok()) {
    base::LogError("cannot plan a job", {{"job", id}, {"why", std::string(job.status().message())}});
    return absl::IsDataLoss(job.status());  // A retry cannot help against a damaged row.
  }
  const absl::StatusOr<PlannedMemory> planned = PlanMemory(*job, cancel);
  if (cancel.cancelled()) return true;  // By a user: the job is CANCELLED. By shutdown: the next server plans it again.
  Transition t;
  t.job_id = id;
  t.from = job->state;
  t.to = planned.ok() ? JobState::kQueued : JobState::kFailed;
  t.attempt = job->attempt;
  StateEvent event{.state = Name(t.to), .from = Name(t.from)};
  if (planned.ok()) {
    t.memory_bytes = planned->bytes;
    t.disk_bytes = planned->disk_bytes;
  } else {
    const absl::Status& why = planned.status();
    t.error = JobError{CodeName(why.code()), base::Reason(why), std::string(why.message()), base::ReasonMetadata(why)};
    t.ended = clock_.Now();
    event.reason = t.error->reason;
    event.message = t.error->message;
  }
  t.events.push_back(ServerEvent(job->attempt, clock_.Now(), event));
  const absl::StatusOr<bool> changed = database_.Apply(t);
  if (!changed.ok()) {
    base::LogError("cannot record the plan of a job, will retry",
                   {{"job", id}, {"why", std::string(changed.status().message())}});
    return false;
  }
  if (*changed && IsFinal(t.to)) {
    StoredJob after = *job;
    after.state = t.to;
    after.error = t.error;
    after.ended = t.ended;
    if (observer_ != nullptr) observer_->OnJobEnded(after);
    Release(after);
  }
  hub_.Notify(id);
  scheduler_.Wake();
  return true;
}

absl::Status JobController::HoldInputs(const StoredJob& job) {
  std::vector<std::shared_ptr<const store::Pin>> pins;
  const std::string user = StrCat("job ", job.id);
  NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.models->PinModel(job.spec.base_model, user, job.tenant));
  NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.datasets->PinDataset(job.spec.train_dataset, user, job.tenant));
  if (!job.spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.datasets->PinDataset(job.spec.eval_dataset, user, job.tenant));
  }
  if (const std::string adapter = StartModel(job.spec); !adapter.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(pins.emplace_back(), state_.models->PinModel(adapter, user, job.tenant));
  }
  base::MutexLock lock(pins_mutex_);
  pins_[job.id] = std::move(pins);
  return absl::OkStatus();
}

void JobController::Release(const StoredJob& job) {
  std::vector<std::shared_ptr<const store::Pin>> pins;
  {
    base::MutexLock lock(pins_mutex_);
    const auto it = pins_.find(job.id);
    if (it != pins_.end()) {
      pins = std::move(it->second);
      pins_.erase(it);
    }
  }
  // A SUCCEEDED job keeps its name reserved until the model has it.
  if (job.state != JobState::kSucceeded) state_.models->Unreserve(job.spec.output_model, job.id);
  if (IsFinal(job.state) && !StartCheckpoint(job.spec).empty()) StartRemovingStart(job.id);
  if (!IsFinal(job.state) || !options_.after_jobs || after_jobs_waits_.exchange(true)) return;
  disk_.Start<absl::Status>([this](const store::Cancelled&) {
    after_jobs_waits_ = false;  // A job that ends after this gets another call.
    options_.after_jobs();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<StoredJob>> JobController::Present(std::vector<StoredJob> jobs,
                                                              const base::CancelToken& cancel) {
  std::map<std::string, std::int64_t> positions;
  const auto is_queued = [](const StoredJob& job) { return job.state == JobState::kQueued; };
  if (std::any_of(jobs.begin(), jobs.end(), is_queued)) {
    NIBBLE_ASSIGN_OR_RETURN(std::vector<QueuedJob> queue, scheduler_.AgedQueue());
    for (const QueuedJob& one : Order(std::move(queue))) positions.emplace(one.id, positions.size());
  }
  for (StoredJob& job : jobs) {
    if (job.state == JobState::kSucceeded && !job.published) {
      job.state = JobState::kRunning;  // SUCCEEDED means that the model exists, which takes some milliseconds more.
      job.ended.reset();
    }
    // A job that has left the queue since it was read has no position.
    if (const auto position = positions.find(job.id); is_queued(job) && position != positions.end()) {
      job.progress["queue_position"] = position->second;
    }
    if (is_queued(job) && job.attempt > 0) AddWait(job);
    // Only for evaluated jobs, because it reads the disk.
    if (!job.progress.contains("latest_eval")) continue;
    if (cancel.cancelled()) return absl::CancelledError("the caller is gone");
    job.best_checkpoint = BestCheckpoint(job);
  }
  return jobs;
}

absl::Status JobController::CheckOutputName(const std::string& name, const std::string& tenant) const {
  return state_.models->CheckFree(name, tenant);
}

void JobController::AddWait(StoredJob& job) const {
  // The event that queued the job is its last one, except for warnings about memory or disk.
  constexpr std::int64_t kMaxLater = 8;
  const std::int64_t after = std::max<std::int64_t>(0, job.last_sequence - 1 - kMaxLater);
  const absl::StatusOr<std::vector<Event>> last = database_.Events(job.id, after, 1 + kMaxLater);
  if (!last.ok()) {  // the job is returned without wait_reason and wait_message
    base::LogWarning("cannot read a job's events", {{"job", job.id}, {"why", std::string(last.status().message())}});
    return;
  }
  for (auto event = last->rbegin(); event != last->rend(); ++event) {
    const auto body = Decode(event->type, event->body);
    const auto* state = body.has_value() ? std::get_if<StateEvent>(&*body) : nullptr;
    if (state == nullptr) continue;
    const auto from = ParseJobState(state->from);
    if (state->state != Name(JobState::kQueued) || !from.ok() || !HasTrainer(*from)) return;  // resumed by a user
    const absl::Duration wait = absl::Seconds(state->retry_in_s.value_or(0.0));
    const absl::Duration left = std::min(event->time + wait - clock_.Now(), wait);  // a clock may be set back
    const auto left_s = static_cast<std::int64_t>(std::ceil(absl::ToDoubleSeconds(left)));
    job.wait_reason = state->reason;
    job.wait_message =
        StrCat(state->message, state->message.empty() ? "" : "; ",
               job.retries > 0 ? StrCat("retry ", job.retries, " of ", options_.retry.max_retries) : "the next attempt",
               left_s > 0 ? StrCat(" in ", left_s, " s") : std::string(" waits for its turn"));
    return;
  }
}

absl::StatusOr<StoredJob> JobController::Present(StoredJob job) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<StoredJob> jobs, Present(std::vector<StoredJob>{std::move(job)}));
  return std::move(jobs.front());
}

absl::StatusOr<StoredJob> JobController::Get(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(StoredJob job, database_.Get(id));
  return Present(std::move(job));
}

absl::StatusOr<JobController::LastAttempt> JobController::FindLastAttempt(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(id));
  return LastAttempt{.attempt = job.attempt,
                     .has_trainer = HasTrainer(job.state),
                     .may_continue = !IsFinal(job.state) && job.state != JobState::kPaused};
}

absl::StatusOr<Database::JobPage> JobController::List(const JobQuery& query, std::int64_t limit,
                                                      const base::CancelToken& cancel) {
  NIBBLE_ASSIGN_OR_RETURN(Database::JobPage page,
                          database_.List(query, std::clamp<std::int64_t>(limit, 1, kMaxListed), cancel));
  NIBBLE_ASSIGN_OR_RETURN(page.jobs, Present(std::move(page.jobs), cancel));
  return page;
}

absl::StatusOr<std::vector<store::CheckpointInfo>> JobController::Checkpoints(const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(id));
  NIBBLE_ASSIGN_OR_RETURN(auto named, NamedCheckpoints(job));
  // A job that was deleted during the listing is NotFound, not a job without checkpoints.
  NIBBLE_RETURN_IF_ERROR(database_.EndOfLog(id).status());
  return named;
}

absl::StatusOr<std::vector<store::CheckpointInfo>> JobController::NamedCheckpoints(const StoredJob& job) const {
  NIBBLE_ASSIGN_OR_RETURN(const auto all, store::ListAllCheckpoints(state_.files, state_.paths.attempts(job.id)));
  // The checkpoint after the last step is written before the final evaluation, so its file has an older loss.
  const LatestEval latest = LatestEvalOf(job);
  std::vector<store::CheckpointInfo> named;
  for (const store::CheckpointInfo& one : all) {
    if (!named.empty() && named.back().step == one.step) named.pop_back();
    named.push_back(one);
    if (one.step == latest.step) named.back().metrics["eval_loss"] = latest.loss;
  }
  return named;
}

std::optional<store::CheckpointInfo> JobController::BestCheckpoint(const StoredJob& job) {
  const auto key = store::CheckpointsKey(state_.paths.attempts(job.id));
  const auto best = [&]() -> absl::StatusOr<std::optional<store::CheckpointInfo>> {
    if (!key.has_value()) return FindBestCheckpoint(job);
    const auto find = [&](const std::string&) { return FindBestCheckpoint(job); };
    const LatestEval latest = LatestEvalOf(job);
    const std::string digest = base::Sha256Hex(StrCat(latest.step, " ", latest.loss, "\n", *key));
    NIBBLE_ASSIGN_OR_RETURN(const auto found, best_checkpoints_.Get(digest, find));
    return *found;
  }();
  if (best.ok()) return *best;
  // The job is returned without its best checkpoint.
  base::LogWarning("cannot read a job's checkpoints", {{"job", job.id}, {"why", std::string(best.status().message())}});
  return std::nullopt;
}

absl::StatusOr<std::optional<store::CheckpointInfo>> JobController::FindBestCheckpoint(const StoredJob& job) const {
  NIBBLE_ASSIGN_OR_RETURN(const auto all, NamedCheckpoints(job));
  const store::CheckpointInfo* best = nullptr;
  double lowest = 0;
  for (const store::CheckpointInfo& one : all) {
    const auto loss = one.metrics.find("eval_loss");
    if (loss == one.metrics.end() || (best != nullptr && loss->second >= lowest)) continue;
    best = &one;
    lowest = loss->second;
  }
  return best == nullptr ? std::optional<store::CheckpointInfo>() : std::optional(*best);
}

absl::StatusOr<store::CheckpointInfo> JobController::FindCheckpoint(const std::string& name) {
  const std::string id = name.substr(0, name.find('/'));
  const auto all = Checkpoints(id);
  if (!all.ok() && !absl::IsNotFound(all.status())) return all.status();
  for (std::size_t i = all.ok() ? all->size() : 0; i > 0; --i) {
    const store::CheckpointInfo& info = (*all)[i - 1];
    if (name == StrCat(id, "/", info.step)) return info;
  }
  return NoCheckpoint(name);
}

absl::StatusOr<std::optional<JobStart>> JobController::FindStart(const JobSpec& spec, const std::string& tenant) {
  StoredJob job;
  job.spec = spec;
  job.tenant = tenant;
  if (StartCheckpoint(spec).empty()) return std::optional<JobStart>();
  NIBBLE_ASSIGN_OR_RETURN(job.digests, MakeJobDigests(state_, spec, options_.code_digest));
  return FindStart(job);
}

absl::StatusOr<std::optional<JobStart>> JobController::FindStart(const StoredJob& job) {
  const std::string name = StartCheckpoint(job.spec);
  if (name.empty()) return std::optional<JobStart>();
  const absl::StatusOr<StoredJob> source = database_.Get(name.substr(0, name.find('/')));
  if (absl::IsNotFound(source.status())) return NoCheckpoint(name);
  NIBBLE_RETURN_IF_ERROR(source.status());
  if (!job.tenant.empty() && source->tenant != job.tenant) return NoCheckpoint(name);
  NIBBLE_ASSIGN_OR_RETURN(const store::CheckpointInfo checkpoint, FindCheckpoint(name));
  NIBBLE_ASSIGN_OR_RETURN(JobStart start, MakeJobStart(job, *source, checkpoint));
  return std::optional<JobStart>(std::move(start));
}

absl::Status JobController::VerifyStart(const JobStart& start, const base::CancelToken& cancel) {
  return jobs::VerifyStart(state_.files, start, [&cancel] { return cancel.cancelled(); });
}

absl::StatusOr<JobController::EventPage> JobController::Events(const std::string& id, std::int64_t after,
                                                               std::int64_t limit) {
  // Read first: if the log is complete now, the events read afterwards are all there will be.
  NIBBLE_ASSIGN_OR_RETURN(const Database::LogEnd end, database_.EndOfLog(id));
  EventPage page;
  NIBBLE_ASSIGN_OR_RETURN(page.events, database_.Events(id, after, std::clamp<std::int64_t>(limit, 1, kMaxListed)));
  const std::int64_t last = page.events.empty() ? after : page.events.back().sequence;
  page.ended = end.complete && last >= end.last_sequence;
  return page;
}

absl::StatusOr<std::vector<Event>> JobController::EventsBefore(const std::string& id, std::int64_t before,
                                                               std::int64_t limit) {
  return database_.EventsBefore(id, before, std::clamp<std::int64_t>(limit, 1, kMaxListed));
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
                                                         const std::string& token,
                                                         const std::vector<std::string>& lines) {
  return supervisor_.Ingest(id, attempt, token, lines);
}

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
      t.error = CancelledByUser(id, job.state, job.progress);
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
    scheduler_.Wake();
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
  if (scheduler_.draining()) return Draining();
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
    scheduler_.Wake();  // Its trainer has just ended.
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

void JobController::StartRemovingStart(const std::string& id) {
  removals_.Start<absl::Status>([this, id](const store::Cancelled&) {
    absl::Status removed = state_.files.RemoveAll(state_.paths.start(id));
    removed.Update(state_.files.RemoveAll(state_.paths.start_file(id)));
    if (!removed.ok()) {
      // They stay until the job is deleted.
      base::LogWarning("cannot remove the checkpoint that a job started from",
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
