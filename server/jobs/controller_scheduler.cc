// JobController: start-up, the scheduler's rounds, and shutdown.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/controller.h"

namespace nibble::jobs {

namespace {

// Maximum number of warnings about waiting jobs in one round: each is a synced write.
constexpr int kMaxWarnings = 5;

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
                    Wake();
                  }),
      observer_(observer),
      retention_(database, clock, options_.retention, [this](const std::string& id) { return DeleteExpired(id); }),
      disk_admission_(state, disk_),
      ticked_ns_(absl::ToInt64Nanoseconds(clock.Monotonic())),
      planning_(options_.planners,
                [this](const std::string& id, const base::CancelToken& cancel) { return Plan(id, cancel); }),
      disk_([this] { Wake(); }),
      removals_([this] { Wake(); }) {}

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
      // An unpublished model may be in its place already; then the job itself holds the name.
      const absl::Status reserved = state_.models->Reserve(job.spec.output_model, job.id, job.tenant);
      if (!reserved.ok() && jobs == &open) {
        base::LogWarning("the output name of a job is taken",
                         {{"job", job.id}, {"why", std::string(reserved.message())}});
      }
    }
  }
  for (const StoredJob& job : unpublished) {
    if (absl::Status published = publisher_.Publish(job); !published.ok()) {
      base::LogError("cannot publish a trained model, will retry",
                     {{"job", job.id}, {"why", std::string(published.message())}});
    }
  }
  for (const StoredJob& job : open) {
    if (absl::Status held = HoldInputs(job); !held.ok()) {
      // Its start will fail and say so.
      base::LogWarning("an input of a job is missing", {{"job", job.id}, {"why", std::string(held.message())}});
    }
    supervisor_.Collect(job.id, HasTrainer(job.state) ? job.attempt : 0);
    if (HasTrainer(job.state)) NIBBLE_RETURN_IF_ERROR(supervisor_.Adopt(job));
    if (job.state == JobState::kQueued) NIBBLE_RETURN_IF_ERROR(supervisor_.ResumeBackoff(job));
  }
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

void JobController::Run(const std::string& report_address) {
  supervisor_.set_report_address(report_address);
  thread_ = std::thread([this] {
    base::MutexLock lock(wake_mutex_);
    while (!stopping_) {
      woken_ = false;
      lock.Unlock();
      const bool more = Round();
      // Run often while there are trainers or rows to remove. Otherwise run on changes, and twice a second for backoffs
      // and for retries of failed writes.
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
  const auto await_disk = [this] {
    disk_.AwaitIdle();
    removals_.AwaitIdle();
  };
  for (await_disk(); supervisor_.on_disk(); await_disk()) Round();
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
    for (const StoredJob& job : *unpublished) {
      if (absl::Status published = publisher_.Publish(job); !published.ok()) {
        base::LogError("cannot publish a trained model, will retry",
                       {{"job", job.id}, {"why", std::string(published.message())}});
      }
    }
  }
  const RunningLoad load = supervisor_.load();
  if (load.jobs >= options_.queue.max_running) return;
  absl::StatusOr<std::vector<QueuedJob>> queue = AgedQueue();
  if (!queue.ok()) {
    base::LogError("cannot read the queue", {{"why", std::string(queue.status().message())}});
    return;
  }
  std::erase_if(*queue, [this](const QueuedJob& one) { return supervisor_.starting(one.id); });
  for (QueuedJob& one : *queue) one.not_before = supervisor_.not_before(one.id);
  QueueLimits limits = options_.queue;
  if (options_.memory != nullptr) limits.left_bytes = options_.memory->left();
  const auto picked = disk_admission_.Pick(*queue, load, limits, supervisor_.planned_disk(), clock_.Monotonic());
  if (!picked.ok()) {
    base::LogError("cannot pick jobs to start", {{"why", std::string(picked.status().message())}});
    return;
  }
  if (!warned_waiting_.empty()) {
    std::set<std::string> queued;
    for (const QueuedJob& one : *queue) queued.insert(one.id);
    std::erase_if(warned_waiting_, [&](const auto& warned) { return !queued.contains(warned.first); });
  }
  WarnWaiting(*picked, load, limits);
  for (const std::string& id : picked->start) {
    const absl::StatusOr<StoredJob> job = database_.Get(id);
    if (!job.ok()) {
      if (absl::IsNotFound(job.status())) continue;  // Cancelled and deleted meanwhile.
      base::LogError("cannot start a job", {{"job", id}, {"why", std::string(job.status().message())}});
      continue;
    }
    std::shared_ptr<const void> memory;
    if (options_.memory != nullptr && !NeedsMoreThanThereIs(job->memory_bytes, options_.queue)) {
      memory = options_.memory->TryTake(job->memory_bytes);
      if (memory == nullptr) break;  // A model was loaded meanwhile.
    }
    std::erase_if(warned_waiting_, [&](const auto& warned) { return warned.first == id; });
    if (absl::Status started = supervisor_.Start(*job, std::move(memory)); !started.ok()) {
      base::LogError("cannot start a job", {{"job", id}, {"why", std::string(started.message())}});
    }
  }
}

void JobController::WarnWaiting(const Picked& picked, const RunningLoad& load, const QueueLimits& limits) {
  // No trainer runs, and the next job lacks only memory that loaded models hold: only a user can free it by unloading
  // one.
  if (picked.short_of_memory.has_value() && picked.start.empty() && load.jobs == 0) {
    const QueuedJob& job = *picked.short_of_memory;
    WarnWaiting(job, "WAITING_FOR_MEMORY",
                base::StrCat("the job needs ", job.memory_bytes, " bytes of memory, loaded models leave ",
                             limits.left_bytes, ": it starts when enough of them are unloaded"));
  }
  int num_warnings = 0;
  for (const auto& [job, left_bytes] : picked.short_of_disk) {
    const std::string message =
        base::StrCat("the job may still write up to ", job.disk_bytes, " bytes, but only ", left_bytes,
                     " bytes may be written on the server's disk beyond what running jobs still have to write: it "
                     "starts when there is room");
    if (WarnWaiting(job, "WAITING_FOR_DISK", message) && ++num_warnings == kMaxWarnings) return;  // the others later
  }
}

bool JobController::WarnWaiting(const QueuedJob& waiting, const char* reason, const std::string& message) {
  const std::pair<std::string, std::string> about(waiting.id, reason);
  if (!warned_waiting_.insert(about).second) return false;
  const absl::StatusOr<StoredJob> job = database_.Get(waiting.id);
  if (!job.ok() || job->state != JobState::kQueued) {
    warned_waiting_.erase(about);  // Cancelled or paused meanwhile, or unreadable now: the next round looks again.
    return true;
  }
  const WarningEvent warning{.reason = reason, .message = message};
  const auto appended = database_.AppendWhile(*job, {ServerEvent(job->attempt, clock_.Now(), warning)});
  if (!appended.ok()) {
    base::LogError("cannot record that the job is waiting",
                   {{"job", job->id}, {"why", std::string(appended.status().message())}});
    return true;
  }
  if (!*appended) {
    warned_waiting_.erase(about);  // Cancelled or paused meanwhile; a job that comes back may have to wait again.
    return true;
  }
  hub_.Notify(job->id);
  return true;
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
  removals_.Stop();
}

}  // namespace nibble::jobs
