#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/database.h"
#include "server/jobs/disk_admission.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/planning_queue.h"
#include "server/jobs/publisher.h"
#include "server/jobs/runner.h"
#include "server/store/checkpoints.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// Everything about jobs that rpc/ calls. What it answered Ok to survives kill -9 and a power cut. Thread-safe; calls wait for the disk
// (milliseconds), never for a trainer. One thread of its own starts, watches and ends trainers.
class JobController {
 public:
  // Reads the state directory back: publishes what was not yet, adopts trainers that live. The first round looks at what the others
  // left, whose attempts may be lost. Nothing new starts before Run. All references must outlive the controller.
  static absl::StatusOr<std::unique_ptr<JobController>> Open(store::StateDirectory& state, Database& database,
                                                             Runner& runner, base::Clock& clock,
                                                             ControllerOptions options, JobObserver* observer = nullptr);
  // As if killed: trainers go on, nothing is recorded.
  ~JobController();

  // Starts the scheduler thread. `report_address` is where trainers reach the report service ("": journal only).
  void Run(const std::string& report_address);
  // Orderly: nothing new starts, trainers checkpoint and end (SIGTERM, after `grace` SIGKILL), their jobs go back into the
  // queue. Ends all waiting. Later calls that change something: Unavailable (DRAINING).
  void Shutdown(absl::Duration grace);
  // By hand, for tests that do not call Run: one round of the scheduler, and those that take in what was hashed for it; all jobs are
  // planned first.
  void Tick();
  // One round. It waits for the database and for single files, never for something to be hashed or removed.
  // True: more old jobs and events are left to remove.
  bool Round();
  // Since the last round ended, or the controller was opened.
  absl::Duration SinceTick() const;

  // Takes a job in, in PLANNING, or returns the one that this request_id made (docs/life_of_a_job.md). Errors:
  // InvalidArgument (FIELD_VIOLATION),
  // Unimplemented, NotFound (MODEL, DATASET), AlreadyExists (NAME_TAKEN, IDEMPOTENCY_CONFLICT), ResourceExhausted
  // (QUEUE_FULL, TENANT_QUOTA, DISK_FULL), and those of ControllerOptions::check_without_rows. Reads no rows. The errors of
  // ControllerOptions::plan_memory, OUT_OF_DEVICE_MEMORY and a DISK_FULL of the plan end the job as FAILED.
  struct Submission {
    std::string body_digest = {};  // tells whether a repetition asks for the same; "": the spec's
    std::string owner = {};        // as JobRecord; request ids and the quota are each owner's own, in his tenant
    std::string tenant = {};
  };
  absl::StatusOr<JobRecord> Submit(const JobSpec& spec, const std::string& request_id) { return Submit(spec, request_id, {}); }
  absl::StatusOr<JobRecord> Submit(const JobSpec& spec, const std::string& request_id, const Submission& submission);
  absl::StatusOr<JobRecord> Get(const std::string& id);  // NotFound (JOB)
  // As Database::List, with each job as Get shows it.
  absl::StatusOr<Database::JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel = {});
  // Idempotent. FailedPrecondition (ILLEGAL_STATE) where there is no such edge; Aborted (ETAG_MISMATCH) unless the job is as
  // the etag says, when one is given.
  using IfEtag = jobs::IfEtag;
  absl::StatusOr<JobRecord> Cancel(const std::string& id, const IfEtag& etag = {}, bool keep_checkpoint = false);
  absl::StatusOr<JobRecord> Pause(const std::string& id, const IfEtag& etag = {});
  absl::StatusOr<JobRecord> Resume(const std::string& id, const IfEtag& etag = {});
  absl::StatusOr<JobRecord> Checkpoint(const std::string& id, const IfEtag& etag = {});  // of a job that has a trainer
  absl::Status Delete(const std::string& id, const IfEtag& etag = {});  // a final job and its files; its model stays
  absl::StatusOr<std::vector<store::CheckpointInfo>> Checkpoints(const std::string& id);
  // "JOB/STEP": of the attempts that have one of that step, the newest. NotFound (CHECKPOINT).
  absl::StatusOr<store::CheckpointInfo> FindCheckpoint(const std::string& name);

  // Events with a sequence above `after`, in order. `ended`: the job is final and these are its last.
  struct EventPage {
    std::vector<Event> events;
    bool ended = false;
  };
  absl::StatusOr<EventPage> Events(const std::string& id, std::int64_t after, std::int64_t limit);
  // As Events, after waiting (at most `timeout`) for there to be some.
  absl::StatusOr<EventPage> WaitForEvents(const std::string& id, std::int64_t after, std::int64_t limit,
                                          absl::Duration timeout);
  std::unique_ptr<EventHub::Subscription> Subscribe(const std::string& id, EventHub::Callback callback);  // to news of Events

  // Lines of the journal from the report stream. Answers what is durable, and what the trainer is to do. Errors:
  // Unauthenticated (TOKEN_INVALID), NotFound (JOB), FailedPrecondition (FENCED), InvalidArgument (a line, a gap).
  absl::StatusOr<ReportAnswer> IngestReport(const std::string& id, std::int64_t attempt, const std::string& token,
                                            const std::vector<std::string>& lines);

 private:
  JobController(store::StateDirectory& state, Database& database, Runner& runner, base::Clock& clock,
                ControllerOptions options, JobObserver* observer);
  absl::Status Recover();
  absl::Status ForgetRequests();  // old ones; a full disk keeps them for now
  void Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tick_mutex_);
  // Warnings in the events of jobs that wait for room.
  void TellWaiting(const Picked& picked, const RunningLoad& load, const QueueLimits& limits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tick_mutex_);
  // Once for each reason while the job is in the queue. False: it had been done.
  bool TellWaiting(const QueuedJob& waiting, const char* reason, const std::string& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tick_mutex_);
  void Wake();
  // The queue as the policy orders it: with the priorities to which waiting has raised the jobs.
  absl::StatusOr<std::vector<QueuedJob>> AgedQueue();
  // Moves a job by a trigger, against whatever else moves it; `to` is where it ended up.
  absl::StatusOr<JobRecord> Move(const std::string& id, JobTrigger trigger, const IfEtag& etag, bool keep_checkpoint = false);
  absl::StatusOr<std::vector<JobRecord>> Present(std::vector<JobRecord> jobs, const base::CancelToken& cancel = {});
  absl::StatusOr<JobRecord> Present(JobRecord job);
  // Those of a job, by step. Two attempts may have saved the same one: the later has the name.
  absl::StatusOr<std::vector<store::CheckpointInfo>> NamedCheckpoints(const std::string& id) const;
  std::optional<store::CheckpointInfo> BestCheckpoint(const std::string& id) const;
  absl::Status CheckCapacity(const std::string& owner, const std::string& tenant);
  absl::StatusOr<PlannedMemory> PlanMemory(const JobSpec& spec, const base::CancelToken& cancel);
  void AddToPlanning(const JobRecord& job);
  // Plans a job that is PLANNING and moves it on. False: that could not be recorded. Runs on a thread of planning_.
  bool Plan(const std::string& id, const base::CancelToken& cancel);
  void CollectDeleted();
  // The job that the request made before; without one, an error when there is no room for another.
  absl::StatusOr<std::optional<JobRecord>> FindOrAdmit(const std::string& request_id, const std::string& body_digest,
                                                       const std::string& owner, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(submit_mutex_);
  // Records a job that holds its inputs, in PLANNING, or returns the one that the request made meanwhile.
  absl::StatusOr<JobRecord> Record(const JobRecord& job, const std::string& request_id, const std::string& body_digest);
  absl::Status HoldInputs(const JobRecord& job);
  absl::Status DeleteExpired(const std::string& id);
  // Removes the files of a deleted job, gigabytes perhaps, on a disk worker. The next server removes what this one leaves of them.
  void StartRemoving(const std::string& id);
  void Release(const JobRecord& job);

  store::StateDirectory& state_;
  Database& database_;
  base::Clock& clock_;
  const ControllerOptions options_;
  EventHub hub_;
  Publisher publisher_;
  AttemptSupervisor supervisor_;
  JobObserver* const observer_;

  base::Mutex submit_mutex_;  // request_id, room and output name are looked at and then written, one submission at a time
  base::Mutex pins_mutex_;
  std::map<std::string, std::vector<std::shared_ptr<const store::Pin>>> pins_ ABSL_GUARDED_BY(pins_mutex_);  // of jobs not final

  std::atomic<bool> draining_{false};
  base::Mutex tick_mutex_;  // one round at a time
  Retention retention_ ABSL_GUARDED_BY(tick_mutex_);
  DiskAdmission disk_admission_ ABSL_GUARDED_BY(tick_mutex_);
  std::set<std::pair<std::string, std::string>> told_waiting_ ABSL_GUARDED_BY(tick_mutex_);  // queued job and reason
  std::atomic<bool> after_jobs_waits_{false};  // a call of ControllerOptions::after_jobs, for the disk's worker
  std::atomic<std::int64_t> ticked_ns_;  // on the monotonic clock
  base::Mutex wake_mutex_;
  base::Condition wake_;
  bool woken_ ABSL_GUARDED_BY(wake_mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(wake_mutex_) = false;
  PlanningQueue planning_;  // stopped before the disk's worker
  DiskWorker disk_;      // stopped first: it wakes the scheduler
  DiskWorker removals_;  // likewise
  std::thread thread_;
};

}  // namespace nibble::jobs
