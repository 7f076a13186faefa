#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/database.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/live_attempt.h"
#include "server/jobs/oom_watch.h"
#include "server/jobs/policy.h"
#include "server/jobs/publisher.h"
#include "server/jobs/runner.h"
#include "server/jobs/verdict.h"
#include "server/store/checkpoints.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// The attempts that have a trainer: starts them, follows their journals, stops them, and decides what their end means. A checkpoint
// that an attempt resumes from, and an output, are hashed by the disk worker `disk`, and what an attempt left unfinished is removed by
// `removals`, which no hash holds up; meanwhile the job stays QUEUED, or RUNNING, and can be moved as any other. Thread-safe; Start,
// Adopt, Tick and StopAll are called by one thread at a time.
class AttemptSupervisor {
 public:
  // Called, without locks held, when a job has left the hands of the supervisor (final, paused or queued again).
  using OnDone = std::function<void(const JobRecord&)>;
  AttemptSupervisor(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                    const ControllerOptions& options, EventHub& hub, Publisher& publisher, DiskWorker& disk, DiskWorker& removals,
                    JobObserver* observer, OnDone on_done);

  void set_report_address(std::string address) { report_address_ = std::move(address); }

  // QUEUED -> PREPARING with a new attempt, and its trainer; where there may be a checkpoint to resume from, at a Tick after that was
  // hashed. A start that fails ends like an attempt that failed. `memory`: the trainer's share of ControllerOptions::memory; null:
  // its plan, whether that is left or not.
  absl::Status Start(const JobRecord& job, std::shared_ptr<const void> memory);
  // The job has left the queue: drops a start that is still waiting for its checkpoint.
  void AbandonStart(const std::string& job_id);
  // Between Start and the transition.
  bool starting(const std::string& job_id) const;
  // After a restart, for a job with HasTrainer(state). Where its trainer has ended meanwhile, Tick settles that.
  absl::Status Adopt(const JobRecord& job);
  // Removes the unfinished work of a job's attempts: what they wrote, and what a server was just removing when it was killed. Not
  // that of `living`, whose trainer may write (0: none has one).
  void Collect(const std::string& job_id, std::int64_t living) const;
  // After a restart, for a job in the queue: waits out what is left of its backoff.
  absl::Status ResumeBackoff(const JobRecord& job);
  // Follows journals, sends signals that are due, takes in what has ended.
  void Tick();
  // SIGTERM to all, SIGKILL after `grace` (real time), until all ends are recorded.
  void StopAll(absl::Duration grace);

  // The job is CANCELLING or PAUSING in the database; its trainer hears of it at the next Tick.
  void RequestStop(const std::string& job_id, std::int64_t attempt, Control control);
  // The trainer has ended, and its output is being hashed.
  bool verifying(const std::string& job_id) const;
  // A disk worker has something of ours; a Tick afterwards takes it in.
  bool on_disk() const;
  // A checkpoint soon. False when the attempt is over.
  absl::StatusOr<bool> RequestCheckpoint(const std::string& job_id, std::int64_t attempt);
  absl::StatusOr<ReportAnswer> Ingest(const std::string& job_id, std::int64_t attempt, const std::string& token,
                                      const std::vector<std::string>& lines);

  RunningLoad load() const;
  // Planned disk bytes of the jobs that may still write, by id. Those whose trainers have ended do not.
  std::map<std::string, std::int64_t> planned_disk() const;
  // Monotonic time before which a job that failed is not started again.
  absl::Duration not_before(const std::string& job_id) const;

 private:
  using Live = LiveAttempt;
  using Ended = EndedAttempt;
  using Starting = StartingAttempt;
  using Finding = EndedAttempt::Finding;
  using Resume = StartingAttempt::Resume;
  using Found = StartingAttempt::Found;
  using Hashed = EndedAttempt::Hashed;

  Live MakeLive(const JobRecord& job, std::int64_t attempt, const std::string& token, std::shared_ptr<const void> memory) const;
  // Hashes gigabytes: on the disk worker. For a job that has no trainer.
  Found FindResume(const JobRecord& job, const store::Cancelled& cancelled) const;
  absl::Status Begin(const JobRecord& job, std::shared_ptr<const void> memory, const Found& resume);
  void BeginHashed();
  absl::Status Launch(const JobRecord& job, const Resume& resume, Live& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TellDamaged(Live& live, const store::CheckpointInfo& checkpoint);
  // `live` is the caller's alone: under mutex_, or out of the table.
  absl::Status IngestLines(Live& live, const std::vector<JournalLine>& lines);
  absl::Status BecomeRunning(Live& live, const JournalLine& line);
  absl::Status Append(Live& live, const std::vector<NewEvent>& events);
  absl::Status Follow(Live& live);
  void Press(Live& live);
  void LookForLife(Live& live);
  // Of the attempts before: a trainer prunes its own. On the disk worker: looks at every checkpoint, and removes some.
  void PruneOlder(const std::string& job_id, std::int64_t attempt, std::int64_t keep_last) const;

  // Records the end of an attempt. False: a disk worker still removes or hashes its files; call it again.
  absl::StatusOr<bool> Settle(Ended& ended);
  absl::Status DrainJournal(Live& live);
  std::shared_ptr<Deferred<absl::Status>> StartCollecting(const Live& live) const;
  absl::StatusOr<Finding> Examine(const Ended& ended) const;  // without the output; an error where that cannot be told now
  absl::Status VerifyOutput(Ended& ended);
  // False while it is being hashed; an error where it cannot be read now.
  absl::StatusOr<bool> TakeOutput(Ended& ended);
  absl::StatusOr<bool> Decide(Ended& ended);
  void SettleAll();

  store::StateDirectory& state_;
  Database& database_;
  Runner& runner_;
  base::Clock& clock_;
  const ControllerOptions& options_;
  EventHub& hub_;
  Publisher& publisher_;
  DiskWorker& disk_;
  DiskWorker& removals_;
  JobObserver* const observer_;
  const OnDone on_done_;
  std::string report_address_;
  bool stopping_ = false;  // StopAll was called

  mutable base::Mutex mutex_;
  OomWatch oom_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);  // by job id
  std::map<std::string, absl::Duration> not_before_ ABSL_GUARDED_BY(mutex_);
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Starting> starting_ ABSL_GUARDED_BY(mutex_);                          // by job id
  std::map<std::string, std::shared_ptr<Deferred<Hashed>>> outputs_ ABSL_GUARDED_BY(mutex_);  // that are being hashed, by job id
};

}  // namespace nibble::jobs
