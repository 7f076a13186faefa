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
#include "server/jobs/event_hub.h"
#include "server/jobs/journal.h"
#include "server/jobs/policy.h"
#include "server/jobs/publisher.h"
#include "server/jobs/runner.h"
#include "server/jobs/verdict.h"
#include "server/store/checkpoints.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// The attempts that have a trainer: starts them, follows their journals, stops them, and decides what their end means.
// Thread-safe; Start, Adopt, Tick and StopAll are called by one thread at a time.
class AttemptSupervisor {
 public:
  // Called, without locks held, when a job has left the hands of the supervisor (final, paused or queued again).
  using OnDone = std::function<void(const JobRecord&)>;
  AttemptSupervisor(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                    const ControllerOptions& options, EventHub& hub, Publisher& publisher, JobObserver* observer,
                    OnDone on_done);

  void set_report_address(std::string address) { report_address_ = std::move(address); }

  // QUEUED -> PREPARING with a new attempt, and its trainer. A start that fails ends like an attempt that failed. `memory`: what
  // the trainer has of ControllerOptions::memory; null: its plan, whether it is left or not.
  absl::Status Start(const JobRecord& job, std::shared_ptr<const void> memory);
  // After a restart, for a job with HasTrainer(state). Where its trainer has ended meanwhile, the next Tick settles that: it
  // hashes the output, and calls are served by then.
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
  // A checkpoint soon. False when the attempt is over.
  absl::StatusOr<bool> RequestCheckpoint(const std::string& job_id, std::int64_t attempt);
  absl::StatusOr<ReportAnswer> Ingest(const std::string& job_id, std::int64_t attempt, const std::string& token,
                                      const std::vector<std::string>& lines);

  RunningLoad load() const;
  // Monotonic time before which a job that failed is not started again.
  absl::Duration not_before(const std::string& job_id) const;

 private:
  struct Live {
    explicit Live(const std::string& directory) : directory(directory), journal(directory) {}
    std::string job_id;
    std::int64_t attempt = 0;
    std::string directory;
    std::string token;
    std::int64_t memory_bytes = 0;  // as planned
    std::shared_ptr<const void> memory;  // taken of ControllerOptions::memory
    JournalReader journal;
    std::int64_t last_sequence = 0;
    base::Json progress;
    std::optional<Control> stop;  // asked for
    std::optional<absl::Duration> terminated;  // when SIGTERM went out
    bool killed = false;
    bool hung = false;
    bool complained = false;  // of what is wrong with the journal now
    bool unreadable = false;  // the journal is damaged: left alone until the end
    bool told_damaged = false;  // the user was, of the journal
    bool adopted = false;  // taken over after a restart: its end may be LOST
    absl::Duration last_line;  // of the journal, or last sign of life
    absl::Duration looked;  // for a sign of life
    std::string alive;  // the last one
    std::int64_t keep_last = 1;  // run.keep_last
    bool checkpointed = false;  // a checkpoint came: older attempts' may go
  };
  struct Ended {
    Live live;
    ExitStatus exit;
    absl::Status start_failure;
    absl::Duration try_at = -absl::InfiniteDuration();  // after a failure: not at every tick
  };

  Live MakeLive(const JobRecord& job, std::int64_t attempt, const std::string& token, std::shared_ptr<const void> memory) const;
  // What an attempt goes on from: the newest good checkpoint, if there is one, and those that were passed over for it.
  struct Resume {
    std::optional<store::CheckpointInfo> checkpoint;
    std::vector<store::CheckpointInfo> damaged;
  };
  // Hashes gigabytes: without mutex_. For a job that has no trainer.
  absl::StatusOr<Resume> FindResume(const JobRecord& job) const;
  absl::Status Launch(const JobRecord& job, const Resume& resume, Live& live);
  absl::Status TellDamaged(Live& live, const store::CheckpointInfo& checkpoint);
  // `live` is the caller's alone: under mutex_, or out of the table.
  absl::Status IngestLines(Live& live, const std::vector<JournalLine>& lines);
  absl::Status BecomeRunning(Live& live, const JournalLine& line);
  absl::Status Append(Live& live, const std::vector<NewEvent>& events);
  absl::Status Follow(Live& live);
  void Press(Live& live);
  void LookForLife(Live& live);
  // Of the attempts before: a trainer prunes its own. Without mutex_: looks at every checkpoint.
  void PruneOlder(const std::string& job_id, std::int64_t attempt, std::int64_t keep_last);

  // What ended is kept until the database has it.
  absl::Status Settle(Ended& ended);
  absl::Status DrainJournal(Live& live);
  struct Finding {
    Verdict verdict;
    std::optional<Outcome> outcome;
    std::string output_digest;  // of the verified output, when it succeeded
  };
  absl::StatusOr<Finding> Examine(const Ended& ended) const;  // an error where that cannot be told now
  absl::StatusOr<bool> Decide(Ended& ended, const Finding& finding);
  void SettleAll();

  store::StateDirectory& state_;
  Database& database_;
  Runner& runner_;
  base::Clock& clock_;
  const ControllerOptions& options_;
  EventHub& hub_;
  Publisher& publisher_;
  JobObserver* const observer_;
  const OnDone on_done_;
  std::string report_address_;
  bool stopping_ = false;  // StopAll was called

  mutable base::Mutex mutex_;
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);  // by job id
  std::map<std::string, absl::Duration> not_before_ ABSL_GUARDED_BY(mutex_);
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::jobs
