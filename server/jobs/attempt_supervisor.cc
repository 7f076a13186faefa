#include "server/jobs/attempt_supervisor.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "server/base/constant_time.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/cancel_error.h"
#include "server/jobs/job_start.h"
#include "server/jobs/progress.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

using Cause = TrainerEnd::Cause;
using Kind = Verdict::Kind;
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

// The OOM killer sends SIGKILL. How an adopted trainer ended is unknown, so it may have been killed too.
bool MayBeOutOfMemory(const LiveAttempt& live, const TrainerEnd& end) {
  if (live.killed) return false;  // By this server.
  return end.cause == Cause::kUnknown || (end.cause == Cause::kSignaled && end.value == SIGKILL);
}

constexpr absl::Duration kWarnWaitingAgain = absl::Minutes(5);
// Wait before a start that could not be recorded is retried: a full disk may stay full, and each try hashes the
// checkpoint.
constexpr absl::Duration kStartAgain = absl::Seconds(1);

NewEvent FromLine(const JournalLine& line, std::int64_t attempt, base::Clock& clock) {
  NewEvent event;
  event.attempt = attempt;
  event.attempt_sequence = line.sequence;
  std::string error;
  // The time is that of the trainer's machine. An invalid time is replaced, not refused.
  if (!absl::ParseTime(absl::RFC3339_full, line.time, &event.time, &error)) event.time = clock.Now();
  event.type = line.type;
  event.fields = line.body;
  for (const char* key : {"sequence", "time", "type", "attempt"}) event.fields.erase(key);
  return event;
}

absl::Status Fenced(const std::string& job_id, std::int64_t attempt) {
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("attempt ", attempt, " of job ", job_id, " is over: exit without writing")),
      "FENCED", {{"name", job_id}});
}

// Maximum number of tries of Decide: each concurrent writer changes the job's state a bounded number of times.
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

TrainerRequest AttemptSupervisor::RequestOf(const StoredJob& job, const Live& live) const {
  return {.directory = live.directory,
          .job_id = job.id,
          .attempt = live.attempt,
          .device = job.spec.device.empty() ? "cpu" : job.spec.device.substr(0, job.spec.device.find(':')),
          .threads = options_.trainer_threads,
          .memory_bytes = job.memory_bytes};
}

absl::StatusOr<StartOrder> AttemptSupervisor::StartOf(const StoredJob& job) const {
  StartOrder order;
  if (const std::string adapter = StartModel(job.spec); !adapter.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel model, state_.models->Get(adapter));
    order.kind = StartOrder::Kind::kAdapter;
    order.name = adapter;
    order.directory = model.directory;
  } else if (!StartCheckpoint(job.spec).empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const JobStart start, ReadStart(state_.files, state_.paths, job.id));
    order.kind = start.weights_only ? StartOrder::Kind::kWeights : StartOrder::Kind::kResume;
    order.name = start.checkpoint;
    order.directory = start.directory;
    order.same_rows = start.same_rows;
    order.same_eval = start.same_eval;
  }
  return order;
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
  } else {
    NIBBLE_ASSIGN_OR_RETURN(order.start, StartOf(job));
  }
  order.output_directory = JoinPath(live.directory, store::kOutputDirectory);
  order.report_address = report_endpoint_.address;
  if (report_endpoint_.read_ca) order.report_ca = report_endpoint_.read_ca();
  order.token = live.token;
  order.threads = options_.trainer_threads;
  order.isa = options_.isa;
  order.nibble_version = options_.nibble_version;
  order.show_alive_every_s = ShowAliveEvery(options_.no_progress_timeout);
  NIBBLE_RETURN_IF_ERROR(state_.files.CreateDirectories(JoinPath(live.directory, store::kCheckpointsDirectory)));
  // Carries over a checkpoint request that the previous attempt did not serve.
  if (job.attempt > 0 && CheckpointRequest(state_.files, state_.paths.attempt(job.id, job.attempt)).has_value()) {
    live.checkpoint_request = base::NewId("request");
    NIBBLE_RETURN_IF_ERROR(jobs::RequestCheckpoint(state_.files, live.directory, live.checkpoint_request));
  }
  NIBBLE_RETURN_IF_ERROR(WriteAttemptOrder(state_.files, live.directory, order));
  runner_.Start(RequestOf(job, live));
  const TrainerState started = runner_.Poll(live.directory);
  if (started.phase == TrainerState::Phase::kEnded && started.end.cause == Cause::kNotStarted) {
    return started.end.failure;
  }
  RecordHandle(live, started.handle);
  base::LogInfo(
      "trainer started",
      {{"job", job.id}, {"attempt", live.attempt}, {"trainer", started.handle}, {"resume_step", order.resume_step}});
  if (observer_ != nullptr) {
    StoredJob started = job;
    started.attempt = live.attempt;
    observer_->OnAttemptStarted(started);
  }
  return absl::OkStatus();
}

void AttemptSupervisor::RecordHandle(Live& live, const std::string& handle) {
  if (handle.empty() || handle == live.handle) return;
  live.handle = handle;
  // An error is only logged: without this record, the next server finds the trainer by its attempt.
  const absl::Status recorded = database_.RecordTrainer(live.job_id, live.attempt, handle, oom_.count());
  if (recorded.ok()) return;
  base::LogWarning("cannot record a trainer's handle",
                   {{"job", live.job_id}, {"why", std::string(recorded.message())}});
}

void AttemptSupervisor::WarnWaiting(Live& live, const std::string& waiting_for) {
  if (waiting_for.empty() || waiting_for == live.waiting_for) return;
  // The cluster changes its words often ("0/101 nodes are available").
  if (!live.waiting_for.empty() && clock_.Monotonic() - live.warned_waiting < kWarnWaitingAgain) return;
  const WarningEvent warning{.reason = "WAITING_FOR_RESOURCES", .message = waiting_for};
  if (absl::Status warned = Append(live, {ServerEvent(live.attempt, clock_.Now(), warning)}); !warned.ok()) {
    base::LogWarning("cannot record why a trainer waits",
                     {{"job", live.job_id}, {"why", std::string(warned.message())}});
    return;  // the next Tick tries again
  }
  live.waiting_for = waiting_for;
  live.warned_waiting = clock_.Monotonic();
  hub_.Notify(live.job_id);
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
  live.handle = record.handle;
  live.checkpoint_request = CheckpointRequest(state_.files, live.directory).value_or("");
  if (store::IsLost(state_.files, live.directory)) {
    // The last server gave up the attempt and was killed before it recorded the end.
    base::MutexLock lock(mutex_);
    ended_.push_back(Ended{.live = std::move(live), .end = {.cause = Cause::kNodeLost}});
    return absl::OkStatus();
  }
  NIBBLE_ASSIGN_OR_RETURN(const bool adopted, runner_.Adopt(RequestOf(job, live), record.handle));
  if (!adopted) {
    live.ordered = state_.files.Exists(JoinPath(live.directory, store::kAttemptFile));
    live.memory = nullptr;  // The trainer is gone: models may use its memory before the first Tick.
    base::MutexLock lock(mutex_);
    // If the OOM killer was active in the same control group since the attempt began, it is the likely cause.
    const std::optional<OomCount>& oom = oom_.count();
    const bool killed =
        options_.container_out_of_memory || (oom.has_value() && record.oom.has_value() &&
                                             oom->group == record.oom->group && oom->kills > record.oom->kills);
    const TrainerEnd end{.cause = killed ? Cause::kOutOfMemory : Cause::kUnknown};
    ended_.push_back(Ended{.live = std::move(live), .end = end});
    return absl::OkStatus();
  }
  const std::string handle = runner_.Poll(live.directory).handle;
  base::LogInfo("trainer adopted", {{"job", job.id}, {"attempt", job.attempt}, {"trainer", handle}});
  if (job.state == JobState::kCancelling) live.stop = job.keep_checkpoint ? Control::kCancelKeeping : Control::kCancel;
  if (job.state == JobState::kPausing) live.stop = Control::kPause;
  base::MutexLock lock(mutex_);
  RecordHandle(live, handle);
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
      TrainerState state = runner_.Poll(live.directory);
      if (state.phase == TrainerState::Phase::kEnded) {
        oom_.Look(clock_.Monotonic());  // Again: the kernel counts a kill before the killed process is gone.
        if (MayBeOutOfMemory(live, state.end) && oom_.Claim(clock_.Monotonic())) state.end.cause = Cause::kOutOfMemory;
        ended_.push_back(Ended{.live = std::move(live), .end = std::move(state.end)});
        it = live_.erase(it);
        continue;
      }
      RecordHandle(live, state.handle);
      WarnWaiting(live, state.waiting_for);
      if (state.phase == TrainerState::Phase::kStarting) live.last_line = clock_.Monotonic();  // It cannot hang yet.
      if (absl::Status followed = live.unreadable ? absl::OkStatus() : Follow(live).status(); !followed.ok()) {
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
      LookForRequest(live);
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

void AttemptSupervisor::LookForRequest(Live& live) const {
  // Only while a request is pending, and here rather than for each report: this reads the disk.
  if (live.checkpoint_request.empty()) return;
  if (!CheckpointRequest(state_.files, live.directory).has_value()) live.checkpoint_request.clear();
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
  if (runner_.outlives_server()) return;  // The next server adopts the trainers.
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
  std::string id = base::NewId("request");
  NIBBLE_RETURN_IF_ERROR(jobs::RequestCheckpoint(state_.files, it->second.directory, id));
  it->second.checkpoint_request = std::move(id);
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

// How an attempt begins.

absl::Status AttemptSupervisor::Start(const StoredJob& job, std::shared_ptr<const void> memory) {
  if (job.attempt == 0) return Begin(job, std::move(memory), Resume{});  // The first attempt has no checkpoint to hash.
  auto resume =
      disk_.Start<Found>([this, job](const store::Cancelled& cancelled) { return FindResume(job, cancelled); });
  base::MutexLock lock(mutex_);
  starting_.insert_or_assign(job.id, Starting{job, std::move(memory), std::move(resume)});
  return absl::OkStatus();
}

void AttemptSupervisor::AbandonStart(const std::string& job_id) {
  base::MutexLock lock(mutex_);
  not_before_.erase(job_id);
  const auto it = starting_.find(job_id);
  if (it == starting_.end()) return;
  it->second.resume->Cancel();
  starting_.erase(it);
}

bool AttemptSupervisor::starting(const std::string& job_id) const {
  base::MutexLock lock(mutex_);
  return starting_.contains(job_id);
}

bool AttemptSupervisor::verifying(const std::string& job_id) const {
  base::MutexLock lock(mutex_);
  return outputs_.contains(job_id);
}

bool AttemptSupervisor::on_disk() const {
  base::MutexLock lock(mutex_);
  const auto collecting = [](const Ended& ended) { return ended.collected != nullptr; };
  return !starting_.empty() || !outputs_.empty() || std::any_of(ended_.begin(), ended_.end(), collecting);
}

void AttemptSupervisor::BeginHashed() {
  std::vector<Starting> hashed;
  {
    base::MutexLock lock(mutex_);
    for (auto it = starting_.begin(); it != starting_.end();) {
      if (!it->second.resume->done()) {
        ++it;
        continue;
      }
      hashed.push_back(std::move(it->second));
      it = starting_.erase(it);
    }
  }
  for (Starting& one : hashed) {
    if (absl::Status begun = Begin(one.job, std::move(one.memory), one.resume->value()); !begun.ok()) {
      // The job is still QUEUED.
      base::LogError("cannot start a job, will retry", {{"job", one.job.id}, {"why", std::string(begun.message())}});
      base::MutexLock lock(mutex_);
      not_before_[one.job.id] = clock_.Monotonic() + kStartAgain;
    }
  }
}

absl::Status AttemptSupervisor::Begin(const StoredJob& job, std::shared_ptr<const void> memory, const Found& resume) {
  Transition transition;
  transition.job_id = job.id;
  transition.from = JobState::kQueued;
  transition.to = JobState::kPreparing;
  transition.attempt = job.attempt;
  transition.new_attempt = true;
  transition.new_attempt_token = base::NewId("token");
  if (!job.started.has_value()) transition.started = clock_.Now();
  const StateEvent event{.state = Name(JobState::kPreparing), .from = Name(JobState::kQueued)};
  transition.events.push_back(ServerEvent(job.attempt + 1, clock_.Now(), event));

  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const bool started, database_.Apply(transition));
    if (!started) return absl::OkStatus();  // Cancelled or paused meanwhile.
    Live live = MakeLive(job, job.attempt + 1, transition.new_attempt_token, std::move(memory));
    absl::Status launched = resume.ok() ? Launch(job, *resume, live) : resume.status();
    if (launched.ok()) {
      live_.emplace(job.id, std::move(live));
    } else {
      TrainerEnd end{.cause = Cause::kNotStarted, .failure = std::move(launched)};
      ended_.push_back(Ended{.live = std::move(live), .end = std::move(end)});
    }
  }
  hub_.Notify(job.id);
  SettleAll();
  return absl::OkStatus();
}

AttemptSupervisor::Found AttemptSupervisor::FindResume(const StoredJob& job, const store::Cancelled& cancelled) const {
  Collect(job.id, 0);
  const std::string attempts = state_.paths.attempts(job.id);
  Resume resume;
  NIBBLE_ASSIGN_OR_RETURN(resume.checkpoint,
                          store::FindNewestCheckpoint(state_.files, attempts, &resume.damaged, cancelled));
  // Older checkpoints are pruned only if the newest is known to be good.
  NIBBLE_ASSIGN_OR_RETURN(const auto all, store::ListAllCheckpoints(state_.files, attempts));
  if (resume.checkpoint.has_value() && all.back().directory == resume.checkpoint->directory) {
    NIBBLE_RETURN_IF_ERROR(store::PruneAllCheckpoints(state_.files, attempts, job.spec.run.keep_last));
  }
  return resume;
}

// Journal lines, from the disk or from the report stream, become events.

absl::StatusOr<ReportAnswer> AttemptSupervisor::Ingest(const std::string& job_id, std::int64_t attempt,
                                                       const std::string& token,
                                                       const std::vector<std::string>& lines) {
  std::vector<JournalLine> parsed;
  for (const std::string& text : lines) {
    NIBBLE_ASSIGN_OR_RETURN(JournalLine line, ParseJournalLine(text));
    parsed.push_back(std::move(line));
  }
  base::MutexLock lock(mutex_);
  const auto it = live_.find(job_id);
  if (it == live_.end() || it->second.attempt != attempt) {
    NIBBLE_RETURN_IF_ERROR(database_.Get(job_id).status());
    return Fenced(job_id, attempt);
  }
  Live& live = it->second;
  // Over a network, the time until the first difference would tell how much of a guess is right.
  if (!base::EqualInConstantTime(live.token, token)) {
    return base::WithReason(absl::UnauthenticatedError("wrong token for this attempt"), "TOKEN_INVALID");
  }
  // The trainer writes the journal on disk first, so the disk has the lines that the stream lacks.
  if (!parsed.empty() && parsed.front().sequence > live.last_sequence + 1)
    NIBBLE_RETURN_IF_ERROR(Follow(live).status());
  NIBBLE_RETURN_IF_ERROR(IngestLines(live, parsed));
  ReportAnswer answer;
  answer.acknowledged = live.last_sequence;
  answer.command = live.stop;
  answer.checkpoint_request = live.checkpoint_request;
  return answer;
}

absl::StatusOr<bool> AttemptSupervisor::Follow(Live& live) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<JournalLine> lines, live.journal.ReadNew());
  // If the database refuses the lines (a full disk), the next call reads them again.
  NIBBLE_RETURN_IF_ERROR(IngestLines(live, lines));
  live.journal.Accept();
  return !lines.empty();
}

absl::Status AttemptSupervisor::IngestLines(Live& live, const std::vector<JournalLine>& lines) {
  std::vector<NewEvent> events;
  const std::int64_t before = live.last_sequence;
  std::int64_t expected = before + 1;
  Json progress = live.progress;
  const auto flush = [&]() -> absl::Status {
    if (events.empty()) return absl::OkStatus();
    std::swap(live.progress, progress);
    if (absl::Status appended = Append(live, events); !appended.ok()) {
      std::swap(live.progress, progress);  // As if the lines had not arrived: they are sent or read again.
      return appended;
    }
    progress = live.progress;
    live.last_sequence = expected - 1;
    for (const NewEvent& event : events) live.checkpointed |= event.type == CheckpointEvent::kType;
    events.clear();
    return absl::OkStatus();
  };
  for (const JournalLine& line : lines) {
    if (line.sequence < expected) continue;  // Already received from the disk or the stream.
    if (line.sequence > expected) {
      NIBBLE_RETURN_IF_ERROR(flush());
      return base::FieldError("sequence", StrCat("is ", line.sequence, ", wanted ", expected, ": lines are missing"));
    }
    const auto body = line.type == StateEvent::kType ? Decode(line.type, line.body) : std::nullopt;
    const auto* state = body.has_value() ? std::get_if<StateEvent>(&*body) : nullptr;
    if (state != nullptr && state->state == Name(JobState::kRunning)) {
      NIBBLE_RETURN_IF_ERROR(flush());
      NIBBLE_RETURN_IF_ERROR(BecomeRunning(live, line, *state));
      live.last_sequence = expected;
      progress = live.progress;
    } else {
      UpdateProgress(progress, line);
      events.push_back(FromLine(line, live.attempt, clock_));
    }
    ++expected;
  }
  NIBBLE_RETURN_IF_ERROR(flush());
  if (live.last_sequence != before) {
    live.last_line = clock_.Monotonic();
    hub_.Notify(live.job_id);
  }
  return absl::OkStatus();
}

absl::Status AttemptSupervisor::BecomeRunning(Live& live, const JournalLine& line, const StateEvent& state) {
  Json progress = live.progress;
  UpdateProgress(progress, line);
  Transition transition;
  transition.job_id = live.job_id;
  transition.from = JobState::kPreparing;
  transition.to = JobState::kRunning;
  transition.attempt = live.attempt;
  transition.progress = progress;
  NewEvent event = FromLine(line, live.attempt, clock_);
  StateEvent running = state;
  running.from = Name(JobState::kPreparing);
  running.resumed_step = state.step;
  event.fields = Encode(running);
  transition.events.push_back(event);
  NIBBLE_ASSIGN_OR_RETURN(const bool changed, database_.Apply(transition));
  if (changed) {
    live.progress = std::move(progress);
    if (observer_ == nullptr) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
    observer_->OnEvent(job, {job.last_sequence, live.attempt, event.type, event.time, event.fields});
    return absl::OkStatus();
  }
  // The job was cancelled while its trainer loaded. The line is kept as a log event.
  const LogEvent late{.message = "the trainer started training after it was asked to stop"};
  event.type = TypeOf(late);
  event.fields = Encode(late);
  return Append(live, {event});
}

absl::Status AttemptSupervisor::Append(Live& live, const std::vector<NewEvent>& events) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Event> appended, database_.Append(live.job_id, events, &live.progress));
  if (observer_ == nullptr || appended.empty()) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
  for (const Event& event : appended) observer_->OnEvent(job, event);
  return absl::OkStatus();
}

// The ends of attempts change their jobs.

void AttemptSupervisor::SettleAll() {
  std::vector<Ended> ended;
  {
    base::MutexLock lock(mutex_);
    std::swap(ended, ended_);
  }
  for (Ended& one : ended) {
    const bool early = clock_.Monotonic() < one.try_at;
    const absl::StatusOr<bool> settled = early ? false : Settle(one);
    if (settled.ok() && *settled) {
      runner_.Forget(one.live.directory);
      continue;
    }
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
    const absl::StatusOr<bool> followed = Follow(live);
    if (followed.ok() && !*followed) return absl::OkStatus();
    const absl::Status& status = followed.status();
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
  if (ended.end.cause == Cause::kNotStarted) {
    finding.verdict = Judge(ended.end, std::nullopt);
    if (finding.verdict.reason == "ARTIFACT_CORRUPT" && observer_ != nullptr) observer_->OnArtifactDamaged(live.job_id);
    return finding;
  }
  const bool lost = store::IsLost(state_.files, live.directory);
  auto outcome = lost ? absl::NotFoundError("the attempt is lost") : ReadOutcome(state_.files, live.directory);
  if (outcome.ok()) {
    finding.outcome = *std::move(outcome);
  } else if (!store::SaysDamaged(outcome.status())) {
    return outcome.status();
  } else if (!absl::IsNotFound(outcome.status())) {
    base::LogWarning("cannot read an attempt's outcome",
                     {{"job", live.job_id}, {"why", std::string(outcome.status().message())}});
  }
  Verdict& verdict = finding.verdict;
  verdict = Judge(ended.end, finding.outcome);
  if (verdict.kind == Kind::kSucceeded) return finding;
  if (live.hung && verdict.kind != Kind::kFailed && ended.end.cause != Cause::kNodeLost) {
    // Counts even if the trainer wrote a checkpoint after SIGTERM: a job that hangs every time must run out of retries.
    verdict = {Kind::kRetry, "DEADLINE_EXCEEDED", "NO_PROGRESS", "stopped: the trainer made no progress for too long"};
  } else if (verdict.reason == "OUT_OF_MEMORY" && !finding.outcome.has_value()) {
    verdict.message = OutOfMemory(live.memory_bytes, options_.memory_limit_bytes);
  } else if (verdict.kind == Kind::kRetry && live.stop == Control::kPreempt) {
    verdict.kind = Kind::kRetryUncounted;  // It ended because the server preempted it, cleanly or not.
  }
  return finding;
}

absl::StatusOr<bool> AttemptSupervisor::Settle(Ended& ended) {
  Live& live = ended.live;
  if (!ended.examined && ended.output == nullptr) {
    if (ended.collected == nullptr) {
      const bool lost = store::IsLost(state_.files, live.directory);
      if (!lost && state_.files.Exists(live.directory)) NIBBLE_RETURN_IF_ERROR(DrainJournal(live));
      NIBBLE_RETURN_IF_ERROR(TakeDirectoryAway(ended));
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

absl::Status AttemptSupervisor::TakeDirectoryAway(const Ended& ended) const {
  if (ended.end.cause != Cause::kNodeLost) return absl::OkStatus();
  // The outcome is a trainer's last act.
  const std::string& directory = ended.live.directory;
  if (state_.files.Exists(JoinPath(directory, store::kOutcomeFile))) return absl::OkStatus();
  return store::LoseAttempt(state_.files, directory);
}

std::shared_ptr<Deferred<absl::Status>> AttemptSupervisor::StartCollecting(const Live& live) const {
  return removals_.Start<absl::Status>(
      [this, id = live.job_id, attempt = live.attempt, directory = live.directory](const store::Cancelled&) {
        Collect(id, attempt);
        const bool there = state_.files.Exists(directory) && !store::IsLost(state_.files, directory);
        return there ? store::CollectAttempt(state_.files, directory) : absl::OkStatus();
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
  // Reads the state only now, when RequestStop can find the output: so a cancel takes effect either here or in
  // RequestStop.
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
  Decision decision{.transition = {}, .verdict = finding.verdict};
  Transition& t = decision.transition;
  t.job_id = job.id;
  t.from = job.state;
  t.attempt = job.attempt;
  if (job.state == JobState::kCancelling) {
    t.to = JobState::kCancelled;
    t.attempt_state = "CANCELLED";
    t.error = CancelledByUser(job.id, job.state, live.progress);
    decision.verdict = {Kind::kStopped, t.error->code, t.error->reason, t.error->message};
  } else if (decision.verdict.kind == Kind::kSucceeded && job.state == JobState::kPreparing) {
    t.to = JobState::kRunning;  // The trainer never reported RUNNING. The next Decide makes the job SUCCEEDED.
  } else if (decision.verdict.kind == Kind::kSucceeded) {
    t.to = JobState::kSucceeded;
    t.attempt_state = "SUCCEEDED";
    t.publish_digest = finding.output_digest;
    t.progress = live.progress;
    FinishProgress(*t.progress, finding.outcome->final);
  } else if (decision.verdict.kind == Kind::kFailed) {
    t.to = JobState::kFailed;
    t.attempt_state = "FAILED";
  } else if (job.state == JobState::kPausing) {
    t.to = JobState::kPaused;
    t.attempt_state = "PAUSED";
  } else if (decision.verdict.kind == Kind::kRetry) {
    const bool lost = live.adopted && ended.end.cause == Cause::kUnknown && !finding.outcome.has_value();
    // Without attempt.json no trainer had begun, so the server itself ended. Only if that happens again, the job may be
    // the cause.
    const bool excused = lost && !live.ordered && job.lost_in_row == 0;
    t.retries = job.retries + (excused ? 0 : 1);
    t.to = *t.retries > options_.retry.max_retries ? JobState::kFailed : JobState::kQueued;
    t.attempt_state = lost ? "LOST" : "FAILED";
    t.lost_in_row = lost ? job.lost_in_row + 1 : 0;
    // A job with a LOST attempt is retried at once: it already waited while the server was down. From the second LOST
    // attempt in a row it backs off: its trainer may be what kills the server, and an OOM kill of the whole container
    // leaves no record.
    if (!lost) decision.wait = Backoff(*t.retries, options_.retry);
    if (*t.lost_in_row > 1) decision.wait = Backoff(*t.lost_in_row - 1, options_.retry);
  } else {
    t.to = JobState::kQueued;
    t.attempt_state = "PREEMPTED";
    // The retry does not count, but it waits: repeated preemptions must not become a busy loop.
    if (!stopping_) decision.wait = Backoff(1, options_.retry);
  }
  if (t.to == JobState::kFailed)
    t.error = JobError{decision.verdict.code, decision.verdict.reason, decision.verdict.message};
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
    StateEvent event = StateAfter(job, t.to, decision.verdict);
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
  Announce(after, *t.attempt_state, decision.verdict);
  return true;
}

void AttemptSupervisor::Announce(const StoredJob& job, const std::string& attempt_state, const Verdict& verdict) {
  const auto log = attempt_state == "FAILED" || attempt_state == "LOST" ? base::LogWarning : base::LogInfo;
  log("attempt ended", {{"job", job.id},
                        {"attempt", job.attempt},
                        {"ended", attempt_state},
                        {"state", Name(job.state)},
                        {"reason", verdict.reason}});
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
