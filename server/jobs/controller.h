#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/database.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/job_scheduler.h"
#include "server/jobs/job_start.h"
#include "server/jobs/planning_queue.h"
#include "server/jobs/publisher.h"
#include "server/jobs/runner.h"
#include "server/jobs/text_memo.h"
#include "server/store/checkpoints.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// All job operations that rpc/ calls. A change that was answered Ok survives kill -9 and a power cut. Thread-safe;
// calls wait for the disk (milliseconds; Delete and VerifyStart longer for large files), never for a trainer. On a
// thread of their own, a JobScheduler starts trainers, and an AttemptSupervisor watches and ends them.
class JobController {
 public:
  // Restores the jobs of the state directory: publishes finished outputs and adopts live trainers. The first round
  // settles attempts whose trainers are gone, which may be LOST. Nothing new starts before Run. All references must
  // outlive the controller.
  static absl::StatusOr<std::unique_ptr<JobController>> Open(store::StateDirectory& state, Database& database,
                                                             Runner& runner, base::Clock& clock,
                                                             ControllerOptions options,
                                                             JobObserver* observer = nullptr);
  // Behaves as if killed: trainers keep running, nothing is recorded.
  ~JobController();

  // Starts the scheduler thread.
  void Run(ReportEndpoint endpoint);
  // Orderly shutdown: starts nothing new. Unless trainers outlive the server, lets them write a checkpoint and end
  // (SIGTERM, SIGKILL after `grace`), and requeues their jobs. Ends all waits. Later calls of Submit and Resume return
  // Unavailable (DRAINING).
  void Shutdown(absl::Duration grace);
  // For tests that do not call Run: waits until all jobs are planned, runs one round, then further rounds until the
  // disk workers' results are taken.
  void Tick();
  // Runs one round of the scheduler. It waits for the database and for single files, never for hashing or removals.
  // True if old jobs or events are left to remove.
  bool Round() { return scheduler_.Round(); }
  // Time since the last round ended or, before the first, since the controller was opened.
  absl::Duration SinceRound() const { return scheduler_.SinceRound(); }

  // Accepts a job in state PLANNING, or returns the job that this request_id created (docs/life_of_a_job.md). Errors:
  // InvalidArgument (FIELD_VIOLATION), Unimplemented, NotFound (MODEL, DATASET), AlreadyExists (NAME_TAKEN,
  // IDEMPOTENCY_CONFLICT), ResourceExhausted (QUEUE_FULL, TENANT_QUOTA, DISK_FULL), and those of
  // ControllerOptions::check_without_rows, FindStart and KeepStart. Reads no rows. Errors of
  // ControllerOptions::plan_memory, OUT_OF_DEVICE_MEMORY and a DISK_FULL of the plan make the job FAILED later.
  struct Submission {
    std::string body_digest = {};  // compared when a request_id is repeated; "": the spec's digest
    std::string owner = {};        // as in StoredJob; request ids and the quota are per owner and tenant
    std::string tenant = {};
  };
  absl::StatusOr<StoredJob> Submit(const JobSpec& spec, const std::string& request_id) {
    return Submit(spec, request_id, {});
  }
  absl::StatusOr<StoredJob> Submit(const JobSpec& spec, const std::string& request_id, const Submission& submission);
  absl::StatusOr<StoredJob> Get(const std::string& id);  // NotFound (JOB)
  // The facts about a job's last attempt that a reader of its logs needs. NotFound (JOB). Reads one row; Get also reads
  // checkpoints.
  struct LastAttempt {
    std::int64_t attempt = 0;   // 0: none has begun
    bool has_trainer = false;   // its trainer may still write
    bool may_continue = false;  // it has a trainer, or the server will start another attempt by itself
  };
  absl::StatusOr<LastAttempt> FindLastAttempt(const std::string& id);
  // The files of a job that Get finds.
  const store::StatePaths& paths() const { return state_.paths; }
  // Like Database::List, with each job as Get returns it.
  absl::StatusOr<Database::JobPage> List(const JobQuery& query, std::int64_t limit,
                                         const base::CancelToken& cancel = {});
  // Cancel, Pause and Resume are idempotent. FailedPrecondition (ILLEGAL_STATE) if the job's state does not allow the
  // change; Aborted (ETAG_MISMATCH) if an etag is given and is not the job's.
  using IfEtag = jobs::IfEtag;
  absl::StatusOr<StoredJob> Cancel(const std::string& id, const IfEtag& etag = {}, bool keep_checkpoint = false);
  absl::StatusOr<StoredJob> Pause(const std::string& id, const IfEtag& etag = {});
  absl::StatusOr<StoredJob> Resume(const std::string& id, const IfEtag& etag = {});
  absl::StatusOr<StoredJob> Checkpoint(const std::string& id, const IfEtag& etag = {});  // the job must have a trainer
  absl::Status Delete(const std::string& id, const IfEtag& etag = {});  // a final job and its files, not its model
  absl::StatusOr<std::vector<store::CheckpointInfo>> Checkpoints(const std::string& id);
  // `name` is "JOB/STEP". If several attempts saved that step: the newest attempt's. NotFound (CHECKPOINT).
  absl::StatusOr<store::CheckpointInfo> FindCheckpoint(const std::string& name);

  // The start of a job with this resolved spec; nothing if StartCheckpoint(spec) is empty. Checkpoints of tenants other
  // than `tenant` look absent ("" sees all tenants). Errors: NotFound (CHECKPOINT), those of MakeJobStart and
  // MakeJobDigests.
  absl::StatusOr<std::optional<JobStart>> FindStart(const JobSpec& spec, const std::string& tenant);
  // AlreadyExists (NAME_TAKEN) if a job of this tenant could not be created with this output model now.
  absl::Status CheckOutputName(const std::string& name, const std::string& tenant) const;
  // Hashes gigabytes. Errors: those of jobs::VerifyStart.
  absl::Status VerifyStart(const JobStart& start, const base::CancelToken& cancel);

  // Events with a sequence above `after`, in order. `ended`: the job is final and no event follows these.
  struct EventPage {
    std::vector<Event> events;
    bool ended = false;
  };
  absl::StatusOr<EventPage> Events(const std::string& id, std::int64_t after, std::int64_t limit);
  // Events with a sequence below `before`, newest first.
  absl::StatusOr<std::vector<Event>> EventsBefore(const std::string& id, std::int64_t before, std::int64_t limit);
  // Like Events, but waits up to `timeout` until there are events.
  absl::StatusOr<EventPage> WaitForEvents(const std::string& id, std::int64_t after, std::int64_t limit,
                                          absl::Duration timeout);
  std::unique_ptr<EventHub::Subscription> Subscribe(const std::string& id, EventHub::Callback callback);  // new events

  // Takes journal lines from the report stream. Answers which lines are durable and what the trainer must do. Errors:
  // Unauthenticated (TOKEN_INVALID), NotFound (JOB), FailedPrecondition (FENCED), InvalidArgument (bad or missing
  // line).
  absl::StatusOr<ReportAnswer> IngestReport(const std::string& id, std::int64_t attempt, const std::string& token,
                                            const std::vector<std::string>& lines);

 private:
  JobController(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                ControllerOptions options, JobObserver* observer);
  absl::Status Recover();
  absl::Status ForgetRequests();  // only old ones; on a full disk they stay for now
  // Applies a trigger to a job; tries again if the job's state changes concurrently. Returns the job as it is
  // afterwards.
  absl::StatusOr<StoredJob> Move(const std::string& id, JobTrigger trigger, const IfEtag& etag,
                                 bool keep_checkpoint = false);
  absl::StatusOr<std::vector<StoredJob>> Present(std::vector<StoredJob> jobs, const base::CancelToken& cancel = {});
  absl::StatusOr<StoredJob> Present(StoredJob job);
  // The checkpoints of a job, by step. If two attempts saved the same step, only the later one is listed.
  absl::StatusOr<std::vector<store::CheckpointInfo>> NamedCheckpoints(const StoredJob& job) const;
  std::optional<store::CheckpointInfo> BestCheckpoint(const StoredJob& job);
  void AddWait(StoredJob& job) const;  // sets wait_reason and wait_message
  // Reads all checkpoints of the job, perhaps a thousand.
  absl::StatusOr<std::optional<store::CheckpointInfo>> FindBestCheckpoint(const StoredJob& job) const;
  absl::Status CheckCapacity(const std::string& owner, const std::string& tenant);
  absl::StatusOr<std::optional<JobStart>> FindStart(const StoredJob& job);
  // Hashes the checkpoint that the job starts from, and plans.
  absl::StatusOr<PlannedMemory> PlanMemory(const StoredJob& job, const base::CancelToken& cancel);
  void AddToPlanning(const StoredJob& job);
  // Plans a PLANNING job and records the result. False if that could not be recorded. Runs on a thread of planning_.
  bool Plan(const std::string& id, const base::CancelToken& cancel);
  void CollectDeleted();
  // The job that the request created before. If there is none: nothing, or an error if there is no room for a new job.
  absl::StatusOr<std::optional<StoredJob>> FindOrAdmit(const std::string& request_id, const std::string& body_digest,
                                                       const std::string& owner, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(submit_mutex_);
  // Records a PLANNING job whose inputs are pinned, or returns the job that the request created meanwhile.
  absl::StatusOr<StoredJob> Record(const StoredJob& job, const std::string& request_id, const std::string& body_digest);
  absl::Status HoldInputs(const StoredJob& job);
  absl::Status DeleteExpired(const std::string& id);
  // Removes the files of a deleted job, perhaps gigabytes, on a disk worker. The next server removes any that are left.
  void StartRemoving(const std::string& id);
  void Release(const StoredJob& job);
  // Removes a job's copy of the checkpoint that it started from, on a disk worker.
  void StartRemovingStart(const std::string& id);

  store::StateDirectory& state_;
  Database& database_;
  base::Clock& clock_;
  const ControllerOptions options_;
  EventHub hub_;
  Publisher publisher_;
  AttemptSupervisor supervisor_;
  JobObserver* const observer_;
  // By the digest of store::CheckpointsKey and the last evaluation.
  TextMemo<std::optional<store::CheckpointInfo>> best_checkpoints_;

  base::Mutex submit_mutex_;  // held while request_id, room and output name are checked and then taken
  base::Mutex pins_mutex_;
  // Inputs of jobs that are not final, by job id.
  std::map<std::string, std::vector<std::shared_ptr<const store::Pin>>> pins_ ABSL_GUARDED_BY(pins_mutex_);

  JobScheduler scheduler_;
  std::atomic<bool> after_jobs_waits_{false};  // a call of ControllerOptions::after_jobs is queued on disk_
  PlanningQueue planning_;                     // stopped before disk_, to which it adds work
  DiskWorker disk_;                            // wakes scheduler_ after each piece of work
  DiskWorker removals_;                        // likewise
};

}  // namespace nibble::jobs
