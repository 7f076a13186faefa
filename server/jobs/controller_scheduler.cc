// JobController: start-up, the scheduler's rounds, and the end.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/controller.h"

namespace nibble::jobs {

JobController::JobController(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                             ControllerOptions options, JobObserver* observer)
    : state_(state),
      database_(database),
      clock_(clock),
      options_(std::move(options)),
      publisher_(state, database, clock, hub_, observer),
      supervisor_(state, database, runner, clock, options_, hub_, publisher_, disk_, observer, [this](const JobRecord& job) {
        if (IsFinal(job.state)) Release(job);
        Wake();
      }),
      observer_(observer),
      retention_(database, clock, options_.retention, [this](const std::string& id) { return DeleteExpired(id); }),
      ticked_ns_(absl::ToInt64Nanoseconds(clock.Monotonic())),
      planning_(options_.planners, [this](const std::string& id, const base::CancelToken& cancel) { return Plan(id, cancel); }),
      disk_([this] { Wake(); }) {}

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
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<JobRecord> unpublished, database_.ListUnpublished());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<JobRecord> open,
                          database_.ListAll(OpenStates()));
  // Names first, all of them, before anything can take one.
  for (const auto* jobs : {&unpublished, &open}) {
    for (const JobRecord& job : *jobs) {
      // An unpublished model may be in its place already: then the name is taken, by the job itself.
      const absl::Status reserved = state_.models->Reserve(job.spec.output_model, job.id, job.tenant);
      if (!reserved.ok() && jobs == &open) {
        base::LogWarning("a job's output name is not free any more",
                         {{"job", job.id}, {"why", std::string(reserved.message())}});
      }
    }
  }
  for (const JobRecord& job : unpublished) {
    if (absl::Status published = publisher_.Publish(job); !published.ok()) {
      base::LogError("a trained model is not published yet", {{"job", job.id}, {"why", std::string(published.message())}});
    }
  }
  for (const JobRecord& job : open) {
    if (absl::Status held = HoldInputs(job); !held.ok()) {
      // Its start will fail and say so.
      base::LogWarning("a job's input is gone", {{"job", job.id}, {"why", std::string(held.message())}});
    }
    supervisor_.Collect(job.id, HasTrainer(job.state) ? job.attempt : 0);
    if (HasTrainer(job.state)) NIBBLE_RETURN_IF_ERROR(supervisor_.Adopt(job));
    if (job.state == JobState::kQueued) NIBBLE_RETURN_IF_ERROR(supervisor_.ResumeBackoff(job));
  }
  CollectDeleted();
  // The oldest first. Last: from here on jobs are moved by others too.
  for (auto job = open.rbegin(); job != open.rend(); ++job) {
    if (job->state == JobState::kPlanning) AddToPlanning(*job);
  }
  return absl::OkStatus();
}

// Files of jobs that were deleted when the server died.
void JobController::CollectDeleted() {
  const auto names = state_.files.List(state_.layout.jobs());
  const auto ids = database_.Ids();
  if (!names.ok() || !ids.ok()) return;
  for (const std::string& id : *names) {
    if (ids->contains(id)) continue;
    const absl::Status removed = state_.files.RemoveAll(state_.layout.job(id));
    base::LogWarning("files of a job that is not there any more", {{"job", id}, {"removed", removed.ok() ? "yes" : "no"}});
  }
}

void JobController::Run(const std::string& report_address) {
  supervisor_.set_report_address(report_address);
  thread_ = std::thread([this] {
    base::MutexLock lock(wake_mutex_);
    while (!stopping_) {
      woken_ = false;
      lock.Unlock();
      const bool more = Round();
      // With trainers, or jobs that wait out a backoff, often; else only when something changes, or to try again what
      // the disk refused.
      const bool busy = supervisor_.load().jobs > 0 || more;
      const auto wait = busy ? options_.tick : std::max(options_.tick, absl::Milliseconds(500));
      lock.Lock();
      wake_.WaitFor(lock, absl::ToChronoNanoseconds(wait),
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(wake_mutex_) { return woken_ || stopping_; });
    }
  });
}

void JobController::Wake() {
  base::MutexLock lock(wake_mutex_);
  woken_ = true;
  wake_.NotifyAll();
}

void JobController::Tick() {
  planning_.AwaitIdle();
  Round();
  for (disk_.AwaitIdle(); supervisor_.hashing(); disk_.AwaitIdle()) Round();
}

bool JobController::Round() {
  base::MutexLock lock(tick_mutex_);
  state_.reserve->Refill();
  supervisor_.Tick();
  if (!draining_) Admit();
  const bool more = !draining_ && retention_.Step();
  ticked_ns_ = absl::ToInt64Nanoseconds(clock_.Monotonic());
  return more;
}

absl::Duration JobController::SinceTick() const { return clock_.Monotonic() - absl::Nanoseconds(ticked_ns_.load()); }

void JobController::Admit() {
  const auto unpublished = database_.ListUnpublished();
  if (unpublished.ok()) {
    for (const JobRecord& job : *unpublished) {
      if (absl::Status published = publisher_.Publish(job); !published.ok()) {
        base::LogError("a trained model is not published yet",
                       {{"job", job.id}, {"why", std::string(published.message())}});
      }
    }
  }
  const RunningLoad load = supervisor_.load();
  if (load.jobs >= options_.queue.max_running) return;
  absl::StatusOr<std::vector<QueuedJob>> queue = AgedQueue();
  if (!queue.ok()) {
    base::LogError("the queue cannot be read", {{"why", std::string(queue.status().message())}});
    return;
  }
  std::erase_if(*queue, [this](const QueuedJob& one) { return supervisor_.starting(one.id); });
  for (QueuedJob& one : *queue) one.not_before = supervisor_.not_before(one.id);
  QueueLimits limits = options_.queue;
  if (options_.memory != nullptr) limits.left_bytes = options_.memory->left();
  const std::vector<std::string> picked = PickNext(*queue, load, limits, clock_.Monotonic());
  if (picked.empty() && load.jobs == 0) TellWaiting(*queue, limits.left_bytes);
  for (const std::string& id : picked) {
    const absl::StatusOr<JobRecord> job = database_.Get(id);
    if (!job.ok()) {
      if (absl::IsNotFound(job.status())) continue;  // Cancelled and deleted meanwhile.
      base::LogError("a job is not started", {{"job", id}, {"why", std::string(job.status().message())}});
      continue;
    }
    std::shared_ptr<const void> memory;
    if (options_.memory != nullptr && !NeedsMoreThanThereIs(job->memory_bytes, options_.queue)) {
      memory = options_.memory->TryTake(job->memory_bytes);
      if (memory == nullptr) break;  // A model was loaded since then.
    }
    told_waiting_.erase(id);
    if (absl::Status started = supervisor_.Start(*job, std::move(memory)); !started.ok()) {
      base::LogError("a job is not started", {{"job", id}, {"why", std::string(started.message())}});
    }
  }
}

// Nothing runs, and who is next could, but for the memory of loaded models: only their user can give it back.
void JobController::TellWaiting(const std::vector<QueuedJob>& queue, std::int64_t left) {
  const std::vector<QueuedJob> order = Order(queue);
  const auto next = std::find_if(order.begin(), order.end(), [&](const QueuedJob& one) { return one.not_before <= clock_.Monotonic(); });
  if (next == order.end() || !told_waiting_.insert(next->id).second) return;
  const absl::StatusOr<JobRecord> job = database_.Get(next->id);
  if (!job.ok() || job->state != JobState::kQueued) {
    told_waiting_.erase(next->id);  // Cancelled or paused meanwhile, or unreadable now: the next round looks again.
    return;
  }
  base::Json fields = base::Json::object();
  fields["reason"] = "WAITING_FOR_MEMORY";
  fields["message"] = base::StrCat("the job needs ", next->memory_bytes, " bytes of memory, loaded models leave ", left,
                             ": it starts when enough of them are unloaded");
  const auto told = database_.AppendWhile(*job, {{job->attempt, std::nullopt, clock_.Now(), "warning", std::move(fields)}});
  if (!told.ok()) {
    base::LogError("a job that waits cannot be told so", {{"job", job->id}, {"why", std::string(told.status().message())}});
    return;
  }
  if (!*told) {
    told_waiting_.erase(job->id);  // Cancelled or paused meanwhile; if it comes back, it may have to wait again.
    return;
  }
  hub_.Notify(job->id);
}

void JobController::Shutdown(absl::Duration grace) {
  draining_ = true;
  {
    base::MutexLock lock(wake_mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  planning_.Stop();  // The jobs stay PLANNING: the next server plans them.
  base::MutexLock lock(tick_mutex_);
  supervisor_.StopAll(grace);
  hub_.Close();
}

JobController::~JobController() {
  {
    base::MutexLock lock(wake_mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  planning_.Stop();
  disk_.Stop();
}

}  // namespace nibble::jobs
