#include "server/jobs/attempt_supervisor.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

using base::JoinPath;
using base::Json;
using base::StrCat;

namespace {

// Short enough to notice a hang within seconds after --no_progress_timeout_s has passed.
constexpr absl::Duration kLookForLife = absl::Seconds(5);
constexpr absl::Duration kShowAlive = absl::Seconds(10);

// Seconds between a trainer's signs of life: at least four fit into the timeout.
double ShowAliveEvery(absl::Duration no_progress_timeout) {
  const bool never = no_progress_timeout == absl::ZeroDuration();
  return absl::ToDoubleSeconds(never ? kShowAlive : std::min(kShowAlive, no_progress_timeout / 4));
}

// The OOM killer sends SIGKILL. How an adopted trainer ended is unknown.
bool MayBeOutOfMemory(const LiveAttempt& live, const ExitStatus& exit) {
  if (live.killed) return false;  // By this server.
  return exit.kind == ExitStatus::Kind::kUnknown || (exit.kind == ExitStatus::Kind::kSignaled && exit.value == SIGKILL);
}

}  // namespace

AttemptSupervisor::AttemptSupervisor(store::StateDirectory& state, Database& database, Runner& runner,
                                     base::Clock& clock, const ControllerOptions& options, EventHub& hub,
                                     Publisher& publisher, DiskWorker& disk, DiskWorker& removals,
                                     JobObserver* observer, OnDone on_done)
    : state_(state),
      database_(database),
      runner_(runner),
      clock_(clock),
      options_(options),
      hub_(hub),
      publisher_(publisher),
      disk_(disk),
      removals_(removals),
      observer_(observer),
      on_done_(std::move(on_done)),
      oom_(options.oom_count) {}

AttemptSupervisor::Live AttemptSupervisor::MakeLive(const StoredJob& job, std::int64_t attempt,
                                                    const std::string& token,
                                                    std::shared_ptr<const void> memory) const {
  Live live(state_.paths.attempt(job.id, attempt));
  live.job_id = job.id;
  live.attempt = attempt;
  live.token = token;
  live.memory_bytes = job.memory_bytes;
  live.disk_bytes = job.disk_bytes;
  live.memory = std::move(memory);
  if (live.memory == nullptr && options_.memory != nullptr) live.memory = options_.memory->TakeAnyway(job.memory_bytes);
  live.progress = job.progress;
  live.last_line = live.looked = clock_.Monotonic();
  live.keep_last = job.spec.run.keep_last;
  return live;
}

absl::Status AttemptSupervisor::Launch(const StoredJob& job, const Resume& resume, Live& live) {
  for (const store::CheckpointInfo& one : resume.damaged) NIBBLE_RETURN_IF_ERROR(WarnDamaged(live, one));
  AttemptOrder order;
  order.job_id = job.id;
  order.attempt = live.attempt;
  order.spec = job.spec;
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, state_.models->Get(job.spec.base_model));
  order.base_model_directory = base_model.directory;
  if (options_.base_cache_bytes > 0) {
    order.base_cache_directory = state_.paths.bases();
    order.base_cache_bytes = options_.base_cache_bytes;
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset train, state_.datasets->Get(job.spec.train_dataset));
  order.train_data_path = train.data_path;
  order.train_tokens_directory = state_.paths.tokens(job.spec.train_dataset);
  order.min_free_bytes = static_cast<std::int64_t>(state_.min_free_bytes);
  if (!job.spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset eval, state_.datasets->Get(job.spec.eval_dataset));
    order.eval_data_path = eval.data_path;
    order.eval_tokens_directory = state_.paths.tokens(job.spec.eval_dataset);
    NIBBLE_ASSIGN_OR_RETURN(order.eval_format, base::GetString(eval.meta, "format", "the dataset's meta.json", ""));
  }
  if (resume.checkpoint.has_value()) {
    order.resume_checkpoint_directory = resume.checkpoint->directory;
    order.resume_step = resume.checkpoint->step;
  }
  order.output_directory = JoinPath(live.directory, store::kOutputDirectory);
  order.report_address = report_address_;
  order.token = live.token;
  order.threads = options_.trainer_threads;
  order.isa = options_.isa;
  order.nibble_version = options_.nibble_version;
  order.show_alive_every_s = ShowAliveEvery(options_.no_progress_timeout);
  NIBBLE_RETURN_IF_ERROR(state_.files.CreateDirectories(JoinPath(live.directory, store::kCheckpointsDirectory)));
  // Carries over a checkpoint request that the previous attempt did not serve.
  if (job.attempt > 0 && CheckpointRequested(state_.files, state_.paths.attempt(job.id, job.attempt))) {
    NIBBLE_RETURN_IF_ERROR(jobs::RequestCheckpoint(state_.files, live.directory));
  }
  NIBBLE_RETURN_IF_ERROR(WriteAttemptOrder(state_.files, live.directory, order));
  NIBBLE_ASSIGN_OR_RETURN(const ProcessId process, runner_.Start(live.directory));
  // If the server dies unrecorded, the next one finds the trainer by the attempt's lock.
  if (absl::Status recorded = database_.RecordProcess(job.id, live.attempt, process, oom_.count()); !recorded.ok()) {
    base::LogWarning("cannot record a trainer's pid", {{"job", job.id}, {"why", std::string(recorded.message())}});
  }
  base::LogInfo("trainer started",
                {{"job", job.id}, {"attempt", live.attempt}, {"pid", process.pid}, {"resume_step", order.resume_step}});
  if (observer_ != nullptr) {
    StoredJob started = job;
    started.attempt = live.attempt;
    observer_->OnAttemptStarted(started);
  }
  return absl::OkStatus();
}

absl::Status AttemptSupervisor::WarnDamaged(Live& live, const store::CheckpointInfo& checkpoint) {
  if (observer_ != nullptr) observer_->OnArtifactDamaged(live.job_id);
  const WarningEvent warning{.reason = "CHECKPOINT_CORRUPT",
                             .message = StrCat("the checkpoint of step ", checkpoint.step, " is damaged and not used")};
  return Append(live, {ServerEvent(live.attempt, clock_.Now(), warning)});
}

absl::Status AttemptSupervisor::Adopt(const StoredJob& job) {
  NIBBLE_ASSIGN_OR_RETURN(const StoredAttempt record, database_.GetAttempt(job.id, job.attempt));
  Live live = MakeLive(job, job.attempt, record.token, nullptr);
  live.adopted = true;
  live.alive = LastAlive(state_.files, live.directory);  // an old sign of life proves nothing now
  NIBBLE_ASSIGN_OR_RETURN(live.last_sequence, database_.LastAttemptSequence(job.id, job.attempt));
  const auto process = runner_.Adopt(live.directory, record.process);
  if (!process.ok()) {
    if (!absl::IsNotFound(process.status())) return process.status();
    live.memory = nullptr;  // No trainer uses it: models may be loaded before the first Tick.
    base::MutexLock lock(mutex_);
    // If the OOM killer was active in the same control group since the attempt began, it is the likely cause.
    const std::optional<OomCount>& oom = oom_.count();
    const bool killed =
        oom.has_value() && record.oom.has_value() && oom->group == record.oom->group && oom->kills > record.oom->kills;
    ended_.push_back(Ended{.live = std::move(live), .out_of_memory = killed || options_.container_out_of_memory});
    return absl::OkStatus();
  }
  base::LogInfo("trainer adopted", {{"job", job.id}, {"attempt", job.attempt}, {"pid", process->pid}});
  if (job.state == JobState::kCancelling) live.stop = job.keep_checkpoint ? Control::kCancelKeeping : Control::kCancel;
  if (job.state == JobState::kPausing) live.stop = Control::kPause;
  base::MutexLock lock(mutex_);
  live_.emplace(job.id, std::move(live));  // The next Tick reads the journal.
  return absl::OkStatus();
}

void AttemptSupervisor::Tick() {
  struct Checkpointed {
    std::string job_id;
    std::int64_t attempt, keep_last;
  };
  std::vector<Checkpointed> checkpointed;
  {
    base::MutexLock lock(mutex_);
    oom_.Look(clock_.Monotonic());
    for (auto it = live_.begin(); it != live_.end();) {
      Live& live = it->second;
      // Poll before reading the journal: if the trainer has ended, the journal has everything that it wrote.
      const std::optional<ExitStatus> exit = runner_.Poll(live.directory);
      if (exit.has_value()) {
        oom_.Look(clock_.Monotonic());  // Again after its end: the kill is counted before the process is gone.
        const bool out_of_memory = MayBeOutOfMemory(live, *exit) && oom_.Claim(clock_.Monotonic());
        ended_.push_back(Ended{.live = std::move(live), .exit = *exit, .out_of_memory = out_of_memory});
        it = live_.erase(it);
        continue;
      }
      if (absl::Status followed = live.unreadable ? absl::OkStatus() : Follow(live); !followed.ok()) {
        if (!live.complained) {
          base::LogWarning("cannot read a trainer's journal",
                           {{"job", live.job_id}, {"why", std::string(followed.message())}});
        }
        live.complained = true;
        live.unreadable = absl::IsDataLoss(followed) || absl::IsInvalidArgument(followed);
      } else {
        live.complained = false;
      }
      if (std::exchange(live.checkpointed, false)) checkpointed.push_back({live.job_id, live.attempt, live.keep_last});
      EnforceStop(live);
      ++it;
    }
    runner_.ReapStrays();
  }
  BeginHashed();
  for (const Checkpointed& one : checkpointed) {
    // The disk worker does this before it looks for the next attempt's checkpoint, so no attempt begins meanwhile.
    disk_.Start<absl::Status>([this, one](const store::Cancelled&) {
      PruneOlder(one.job_id, one.attempt, one.keep_last);
      return absl::OkStatus();
    });
  }
  SettleAll();
}

void AttemptSupervisor::EnforceStop(Live& live) {
  const absl::Duration now = clock_.Monotonic();
  if (live.stop.has_value()) {
    if (!live.terminated.has_value()) {
      if (*live.stop != Control::kPreempt) {
        // Without the file the trainer treats SIGTERM as a preemption: it writes a checkpoint and still ends.
        if (absl::Status written = WriteControl(state_.files, live.directory, *live.stop); !written.ok()) {
          base::LogWarning("cannot write control.json",
                           {{"job", live.job_id}, {"why", std::string(written.message())}});
        }
      }
      runner_.Send(live.directory, Runner::Signal::kTerminate);
      live.terminated = now;
      return;
    }
    const absl::Duration grace = *live.stop == Control::kCancel    ? options_.cancel_grace
                                 : *live.stop == Control::kPreempt ? absl::InfiniteDuration()  // StopAll kills
                                                                   : options_.pause_grace;
    if (!live.killed && now - *live.terminated >= grace) {
      runner_.Send(live.directory, Runner::Signal::kKill);
      live.killed = true;
    }
    return;
  }
  if (options_.no_progress_timeout == absl::ZeroDuration()) return;
  LookForLife(live);
  if (!live.hung && now - live.last_line >= options_.no_progress_timeout) {
    live.hung = true;
    live.terminated = now;
    runner_.Send(live.directory, Runner::Signal::kTerminate);
  } else if (live.hung && !live.killed && now - *live.terminated >= options_.no_progress_grace) {
    live.killed = true;
    runner_.Send(live.directory, Runner::Signal::kKill);
  }
}

void AttemptSupervisor::LookForLife(Live& live) {
  const absl::Duration now = clock_.Monotonic();
  if (live.hung || now - live.looked < std::min(options_.no_progress_timeout / 4, kLookForLife)) return;
  live.looked = now;
  std::string alive = LastAlive(state_.files, live.directory);
  if (alive.empty() || alive == live.alive) return;
  live.alive = std::move(alive);
  live.last_line = now;
}

void AttemptSupervisor::PruneOlder(const std::string& job_id, std::int64_t attempt, std::int64_t keep_last) const {
  // Leftovers are harmless: the next checkpoint tries again.
  const std::string attempts = state_.paths.attempts(job_id);
  if (absl::Status pruned = store::PruneOlderAttempts(state_.files, attempts, attempt, keep_last); !pruned.ok()) {
    base::LogWarning("cannot remove old checkpoints", {{"job", job_id}, {"why", std::string(pruned.message())}});
  }
}

void AttemptSupervisor::Collect(const std::string& job_id, std::int64_t living) const {
  // Leftovers are harmless: the next start or end of an attempt tries again.
  if (absl::Status collected = store::CollectAttempts(state_.files, state_.paths.attempts(job_id), living);
      !collected.ok()) {
    base::LogWarning("cannot remove unfinished files", {{"job", job_id}, {"why", std::string(collected.message())}});
  }
}

void AttemptSupervisor::StopAll(absl::Duration grace) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto kill_at = now() + absl::ToChronoNanoseconds(grace);
  const auto give_up = kill_at + std::chrono::seconds(10);
  stopping_ = true;
  {
    base::MutexLock lock(mutex_);
    for (auto& [id, live] : live_) {
      if (!live.stop.has_value()) live.stop = Control::kPreempt;
    }
    for (auto& [id, starting] : starting_) starting.resume->Cancel();
    starting_.clear();  // Their jobs are still QUEUED.
  }
  bool killed = false;
  while (true) {
    Tick();
    if (load().jobs == 0 || now() > give_up) return;
    if (!killed && now() >= kill_at) {
      killed = true;
      base::MutexLock lock(mutex_);
      for (auto& [id, live] : live_) runner_.Send(live.directory, Runner::Signal::kKill);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void AttemptSupervisor::RequestStop(const std::string& job_id, std::int64_t attempt, Control control) {
  base::MutexLock lock(mutex_);
  const auto it = live_.find(job_id);
  if (it == live_.end() || it->second.attempt != attempt) {
    // The trainer has ended; Decide reads the job's state. A cancelled job needs no output.
    const auto output = outputs_.find(job_id);
    if (output != outputs_.end() && control != Control::kPause) output->second->Cancel();
    return;
  }
  if (it->second.stop == control) return;
  it->second.stop = control;
  it->second.terminated.reset();  // A pause that becomes a cancel needs a new SIGTERM.
}

absl::StatusOr<bool> AttemptSupervisor::RequestCheckpoint(const std::string& job_id, std::int64_t attempt) {
  base::MutexLock lock(mutex_);
  const auto it = live_.find(job_id);
  if (it == live_.end() || it->second.attempt != attempt) return false;
  NIBBLE_RETURN_IF_ERROR(jobs::RequestCheckpoint(state_.files, it->second.directory));
  return true;
}

RunningLoad AttemptSupervisor::load() const {
  base::MutexLock lock(mutex_);
  RunningLoad load;
  for (const auto& [id, live] : live_) {
    ++load.jobs;
    load.memory_bytes += live.memory_bytes;
  }
  for (const Ended& ended : ended_) {
    ++load.jobs;
    load.memory_bytes += ended.live.memory_bytes;
  }
  for (const auto& [id, starting] : starting_) {
    ++load.jobs;
    load.memory_bytes += starting.job.memory_bytes;
  }
  return load;
}

std::map<std::string, std::int64_t> AttemptSupervisor::planned_disk() const {
  base::MutexLock lock(mutex_);
  std::map<std::string, std::int64_t> planned;
  for (const auto& [id, live] : live_) planned[id] = live.disk_bytes;
  for (const auto& [id, starting] : starting_) planned[id] = starting.job.disk_bytes;
  return planned;
}

absl::Duration AttemptSupervisor::not_before(const std::string& job_id) const {
  base::MutexLock lock(mutex_);
  const auto it = not_before_.find(job_id);
  return it == not_before_.end() ? -absl::InfiniteDuration() : it->second;
}

}  // namespace nibble::jobs
