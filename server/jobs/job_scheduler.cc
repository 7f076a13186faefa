#include "server/jobs/job_scheduler.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/event.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

namespace {

// Maximum number of warnings about waiting jobs in one round: each is a synced write.
constexpr int kMaxWarnings = 5;

}  // namespace

JobScheduler::JobScheduler(store::StateDirectory& state, Database& database, base::Clock& clock,
                           const ControllerOptions& options, EventHub& hub, Publisher& publisher,
                           AttemptSupervisor& supervisor, DiskWorker& disk, Retention::DeleteJob delete_job)
    : state_(state),
      database_(database),
      clock_(clock),
      options_(options),
      hub_(hub),
      publisher_(publisher),
      supervisor_(supervisor),
      retention_(database, clock, options.retention, std::move(delete_job)),
      disk_admission_(state, disk),
      round_ended_ns_(absl::ToInt64Nanoseconds(clock.Monotonic())) {}

void JobScheduler::Run() {
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

void JobScheduler::Wake() {
  base::MutexLock lock(wake_mutex_);
  woken_ = true;
  wake_.NotifyAll();
}

bool JobScheduler::Round() {
  base::MutexLock lock(round_mutex_);
  state_.reserve->Refill();
  supervisor_.Tick();
  if (!draining_) Admit();
  const bool more = !draining_ && retention_.Step();
  round_ended_ns_ = absl::ToInt64Nanoseconds(clock_.Monotonic());
  return more;
}

absl::Duration JobScheduler::SinceRound() const {
  return clock_.Monotonic() - absl::Nanoseconds(round_ended_ns_.load());
}

void JobScheduler::Admit() {
  if (const auto unpublished = database_.ListUnpublished(); unpublished.ok()) publisher_.PublishAll(*unpublished);
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

void JobScheduler::WarnWaiting(const Picked& picked, const RunningLoad& load, const QueueLimits& limits) {
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

bool JobScheduler::WarnWaiting(const QueuedJob& waiting, const char* reason, const std::string& message) {
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

void JobScheduler::Stop() {
  {
    base::MutexLock lock(wake_mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void JobScheduler::StopTrainers(absl::Duration grace) {
  base::MutexLock lock(round_mutex_);
  supervisor_.StopAll(grace);
}

absl::StatusOr<std::vector<QueuedJob>> JobScheduler::AgedQueue() const {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<QueuedJob> queue, database_.Queue());
  Age(queue, clock_.Now(), options_.ageing);
  return queue;
}

}  // namespace nibble::jobs
