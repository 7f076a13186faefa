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

// Starts attempts, follows their journals, stops them, and decides what their end means for the job. The disk worker
// `disk` hashes outputs and the checkpoints that attempts resume from. The worker `removals` removes unfinished files,
// so that no removal waits for a hash. While a worker works for a job, the job keeps its state, and users can still
// change it. Thread-safe, but only one thread at a time may call Start, Adopt, Tick and StopAll.
class AttemptSupervisor {
 public:
  // Called without locks held when the supervisor is done with a job (it is final, paused or queued again).
  using OnDone = std::function<void(const StoredJob&)>;
  AttemptSupervisor(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                    const ControllerOptions& options, EventHub& hub, Publisher& publisher, DiskWorker& disk,
                    DiskWorker& removals, JobObserver* observer, OnDone on_done);

  void set_report_endpoint(ReportEndpoint endpoint) { report_endpoint_ = std::move(endpoint); }

  // Moves the job from QUEUED to PREPARING with a new attempt, and starts its trainer. From the second attempt on, a
  // Tick does this once the checkpoint to resume from is hashed. A failed start ends like a failed attempt. `memory`:
  // the trainer's share of ControllerOptions::memory; null: takes the planned bytes, even if fewer are left in the
  // budget.
  absl::Status Start(const StoredJob& job, std::shared_ptr<const void> memory);
  // Call when the job has left the queue: drops a start that still waits for its checkpoint.
  void AbandonStart(const std::string& job_id);
  // True between Start and the transition to PREPARING.
  bool starting(const std::string& job_id) const;
  // After a restart: takes over a job with HasTrainer(state). If its trainer has ended meanwhile, Tick settles the
  // attempt.
  absl::Status Adopt(const StoredJob& job);
  // Call after the last Adopt.
  void Recovered() { runner_.Recovered(); }
  // Removes unfinished files of a job's attempts: incomplete writes, and removals that a killed server did not finish.
  // Skips attempt `living`, whose trainer may still write (0: no attempt has a trainer).
  void Collect(const std::string& job_id, std::int64_t living) const;
  // After a restart: restores what is left of a queued job's backoff.
  absl::Status ResumeBackoff(const StoredJob& job);
  // Follows journals, sends due signals and settles ended attempts.
  void Tick();
  // Does nothing if trainers outlive the server. Otherwise sends SIGTERM to all trainers, and SIGKILL after `grace`
  // (real time). Returns when all ends are recorded, or 10 s after the SIGKILL.
  void StopAll(absl::Duration grace);

  // Call when the job is CANCELLING or PAUSING in the database; the next Tick signals its trainer.
  void RequestStop(const std::string& job_id, std::int64_t attempt, Control control);
  // True if the trainer has ended and its output is being hashed.
  bool verifying(const std::string& job_id) const;
  // True while a disk worker works for the supervisor; a Tick afterwards takes the result.
  bool on_disk() const;
  // Asks the trainer for a checkpoint. False if the attempt is over.
  absl::StatusOr<bool> RequestCheckpoint(const std::string& job_id, std::int64_t attempt);
  absl::StatusOr<ReportAnswer> Ingest(const std::string& job_id, std::int64_t attempt, const std::string& token,
                                      const std::vector<std::string>& lines);

  RunningLoad load() const;
  // Planned disk bytes, by job id, of jobs that may still write. Jobs whose trainers have ended are left out.
  std::map<std::string, std::int64_t> planned_disk() const;
  // Monotonic time before which a job in backoff is not started again.
  absl::Duration not_before(const std::string& job_id) const;

 private:
  using Live = LiveAttempt;
  using Ended = EndedAttempt;
  using Starting = StartingAttempt;
  using Finding = EndedAttempt::Finding;
  using Resume = StartingAttempt::Resume;
  using Found = StartingAttempt::Found;
  using Hashed = EndedAttempt::Hashed;

  Live MakeLive(const StoredJob& job, std::int64_t attempt, const std::string& token,
                std::shared_ptr<const void> memory) const;
  TrainerRequest RequestOf(const StoredJob& job, const Live& live) const;
  // Hashes gigabytes, so it runs on the disk worker. The job must have no trainer.
  Found FindResume(const StoredJob& job, const store::Cancelled& cancelled) const;
  absl::Status Begin(const StoredJob& job, std::shared_ptr<const void> memory, const Found& resume);
  void BeginHashed();
  // The initial state of an attempt of a job that has no checkpoint of its own yet.
  absl::StatusOr<StartOrder> StartOf(const StoredJob& job) const;
  absl::Status Launch(const StoredJob& job, const Resume& resume, Live& live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the handle to the database when the runner first knows it.
  void RecordHandle(Live& live, const std::string& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds a warning event when the reason why the trainer has not begun changes.
  void WarnWaiting(Live& live, const std::string& waiting_for) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WarnDamaged(Live& live, const store::CheckpointInfo& checkpoint);
  // In the functions below `live` must belong to the caller alone: it is guarded by mutex_ or no longer in the table.
  absl::Status IngestLines(Live& live, const std::vector<JournalLine>& lines);
  absl::Status BecomeRunning(Live& live, const JournalLine& line, const StateEvent& state);
  absl::Status Append(Live& live, const std::vector<NewEvent>& events);
  // Records the journal's new lines. False if there are none.
  absl::StatusOr<bool> Follow(Live& live);
  void EnforceStop(Live& live);
  // Forgets a checkpoint request that the trainer has served.
  void LookForRequest(Live& live) const;
  void LookForLife(Live& live);
  // Prunes checkpoints of earlier attempts; a trainer prunes its own. Runs on the disk worker, because it looks at
  // every checkpoint and removes some.
  void PruneOlder(const std::string& job_id, std::int64_t attempt, std::int64_t keep_last) const;

  // Records the end of an attempt. False while a disk worker still removes or hashes its files: call it again.
  absl::StatusOr<bool> Settle(Ended& ended);
  absl::Status DrainJournal(Live& live);
  // If the attempt's node is lost, ends the claim of a trainer that may still run there.
  absl::Status TakeDirectoryAway(const Ended& ended) const;
  std::shared_ptr<Deferred<absl::Status>> StartCollecting(const Live& live) const;
  absl::StatusOr<Finding> Examine(const Ended& ended) const;  // without the output; on an error, try again later
  absl::Status VerifyOutput(Ended& ended);
  // False while the output is being hashed; an error if it cannot be read now.
  absl::StatusOr<bool> TakeOutput(Ended& ended);
  // How the end of an attempt changes its job.
  struct Decision {
    Transition transition;                       // without events
    Verdict verdict;                             // for the event, and the error of a failed job
    absl::Duration wait = absl::ZeroDuration();  // before the job's next attempt
  };
  Decision DecisionOf(const StoredJob& job, const Ended& ended) const;
  absl::StatusOr<bool> Decide(Ended& ended);
  // Logs and reports the end of an attempt, and publishes the model of a job that has succeeded.
  void Announce(const StoredJob& job, const std::string& attempt_state, const Verdict& verdict);
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
  ReportEndpoint report_endpoint_;
  bool stopping_ = false;  // StopAll was called

  mutable base::Mutex mutex_;
  OomWatch oom_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);  // by job id
  std::map<std::string, absl::Duration> not_before_ ABSL_GUARDED_BY(mutex_);
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Starting> starting_ ABSL_GUARDED_BY(mutex_);                          // by job id
  std::map<std::string, std::shared_ptr<Deferred<Hashed>>> outputs_ ABSL_GUARDED_BY(mutex_);  // being hashed, by job id
};

}  // namespace nibble::jobs
