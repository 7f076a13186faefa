#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/cancel_token.h"
#include "server/base/memory_budget.h"
#include "server/jobs/attempt.h"
#include "server/jobs/oom_watch.h"
#include "server/jobs/policy.h"
#include "server/jobs/records.h"
#include "server/jobs/retention.h"
#include "server/store/model_store.h"

namespace nibble::jobs {

// Of a job: the peak memory of its trainer, and its files.
struct PlannedMemory {
  std::int64_t bytes = 0;
  std::string pools;            // for people: what it consists of
  std::int64_t disk_bytes = 0;  // of its files, at their most; 0: not known, no room is held
};

struct ControllerOptions {
  QueueLimits queue;
  absl::Duration ageing = absl::Hours(1);  // a waiting job rises by one step of priority in each; 0: never
  // What trainers share with loaded models; null: nothing. A trainer has its planned part of it as long as it lives.
  std::shared_ptr<base::MemoryBudget> memory;
  // Where trainers run; null: why the kernel ended one is not known.
  ReadOomCount oom_count;
  std::int64_t memory_limit_bytes = 0;  // of the server and its trainers together; 0: not known
  std::int64_t max_queued = 1000;  // PLANNING or QUEUED
  int planners = 2;                // plans at a time: a small data set does not wait behind one large one
  std::int64_t max_open_per_owner = 10;  // jobs that are not final; 0: no bound. Of those that have an owner
  RetryOptions retry;
  RetentionOptions retention;
  std::int64_t trainer_threads = 1;
  std::int64_t base_cache_bytes = 0;  // of quantised bases that attempts share; 0: none are kept
  std::string isa = "auto";
  std::string default_device = "cpu";  // what "auto" becomes
  std::string nibble_version = "0.1.0";
  std::string code_digest;  // of this build's sources; "": not known
  absl::Duration cancel_grace = absl::Seconds(5);   // SIGTERM to SIGKILL
  absl::Duration pause_grace = absl::Seconds(60);   // a checkpoint has to fit in
  // No journal line and no sign of life for so long: SIGTERM, after the grace SIGKILL, a retry that counts. 0: never.
  absl::Duration no_progress_timeout = absl::Minutes(30);
  absl::Duration no_progress_grace = absl::Seconds(20);
  absl::Duration tick = absl::Milliseconds(100);    // while trainers live
  absl::Duration request_id_kept = absl::Hours(24);
  // What can be refused without reading rows (does the model take such sequences, is there such a device). Called with the resolved
  // spec while the caller waits: it takes milliseconds.
  std::function<absl::Status(const JobSpec&)> check_without_rows;
  // Of jobs that are PLANNING. Without it jobs are admitted by number alone. May take minutes, and be called by `planners` at a time.
  std::function<absl::StatusOr<PlannedMemory>(const JobSpec&, const base::CancelToken&)> plan_memory;
  // Removes files that only open jobs needed. Called after jobs have ended, by one thread at a time; may take seconds. Null: nothing.
  std::function<void()> after_jobs;
};

// Told what happens, on the thread where it does. Must be quick and may not call the controller. Each thing is told once.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJobCreated(const JobRecord& /*job*/) {}      // a repeated request creates nothing
  virtual void OnAttemptStarted(const JobRecord& /*job*/) {}  // `attempt` is the new one; its trainer runs
  virtual void OnEvent(const JobRecord& /*job*/, const Event& /*event*/) {}  // the trainer's: step, eval, ...
  virtual void OnModelPublished(const JobRecord& /*job*/, const store::StoredModel& /*model*/) {}
  // state of AttemptRecord: "SUCCEEDED", "FAILED", "LOST", ... The job may go on.
  virtual void OnAttemptEnded(const JobRecord& /*job*/, const std::string& /*state*/) {}
  virtual void OnArtifactDamaged(const std::string& /*job_id*/) {}  // a checkpoint, an output, the base or data does not fit its manifest
  // The job is final; one that SUCCEEDED is a model now.
  virtual void OnJobEnded(const JobRecord& /*job*/) {}
};

struct ReportAnswer {
  std::int64_t acknowledged = 0;  // every line up to this one is durable
  std::optional<Control> command;
};

}  // namespace nibble::jobs
