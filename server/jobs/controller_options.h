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
#include "server/jobs/retention.h"
#include "server/jobs/stored_job.h"
#include "server/store/model_store.h"

namespace nibble::jobs {

// The needs of a job: peak memory of its trainer, and disk space.
struct PlannedMemory {
  std::int64_t bytes = 0;
  std::string pools;            // for people: the parts of `bytes`
  std::int64_t disk_bytes = 0;  // largest total size of its files; 0: unknown, nothing is reserved
  std::int64_t max_steps = 0;   // optimizer steps of the run
};

struct ControllerOptions {
  QueueLimits queue;
  absl::Duration ageing = absl::Hours(1);  // a waiting job rises by one priority step per interval; 0: never
  // The budget that trainers share with loaded models; null: none. A trainer holds its planned bytes while it lives.
  std::shared_ptr<base::MemoryBudget> memory;
  // Counts OOM kills where trainers run; null: OOM kills are not recognized.
  ReadOomCount oom_count;
  // The OOM killer ended the previous container, so it ended the attempts that ran there.
  bool container_out_of_memory = false;
  std::int64_t memory_limit_bytes = 0;   // of the server and its trainers together; 0: unknown
  std::int64_t max_queued = 1000;        // jobs that are PLANNING or QUEUED
  int planners = 2;                      // concurrent plans, so that a small dataset does not wait behind a large one
  std::int64_t max_open_per_owner = 10;  // jobs of one owner that are not final; 0: no limit
  RetryOptions retry;
  RetentionOptions retention;
  std::int64_t trainer_threads = 1;
  std::int64_t base_cache_bytes = 0;  // for quantized bases that attempts share; 0: none are kept
  std::string isa = "auto";
  std::string default_device = "cpu";  // what "auto" becomes
  std::string nibble_version = "0.1.0";
  std::string code_digest;                         // digest of this build's sources; "": unknown
  absl::Duration cancel_grace = absl::Seconds(5);  // SIGTERM to SIGKILL
  absl::Duration pause_grace = absl::Seconds(60);  // must suffice for a checkpoint
  // After this long without a journal line or sign of life a trainer gets SIGTERM, then SIGKILL after the grace. The
  // retry counts. 0: never.
  absl::Duration no_progress_timeout = absl::Minutes(30);
  absl::Duration no_progress_grace = absl::Seconds(20);
  absl::Duration tick = absl::Milliseconds(100);  // between rounds while trainers live
  absl::Duration request_id_kept = absl::Hours(24);
  // Refuses what can be refused without reading rows (sequences too long for the model, unknown device). Called with
  // the resolved spec while the caller waits, so it must return within milliseconds.
  std::function<absl::Status(const JobSpec&)> check_without_rows;
  // Plans a PLANNING job. If null, only the number of jobs limits admission. May take minutes; called by up to
  // `planners` threads at a time.
  std::function<absl::StatusOr<PlannedMemory>(const JobSpec&, const base::CancelToken&)> plan_memory;
  // Removes files that only open jobs needed. Called after jobs have ended, by one thread at a time; may take seconds.
  // May be null.
  std::function<void()> after_jobs;
};

// Called once for each event below, on the thread where it happens. Must return quickly and must not call the
// controller.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJobCreated(const StoredJob& /*job*/) {}      // not called for a repeated request
  virtual void OnAttemptStarted(const StoredJob& /*job*/) {}  // job.attempt is the new one; its trainer runs
  // An event of an attempt: the trainer's (step, eval, ...), and the supervisor's warnings about it.
  virtual void OnEvent(const StoredJob& /*job*/, const Event& /*event*/) {}
  virtual void OnModelPublished(const StoredJob& /*job*/, const store::StoredModel& /*model*/) {}
  // `state` as in StoredAttempt: "SUCCEEDED", "FAILED", "LOST", ... The job may continue.
  virtual void OnAttemptEnded(const StoredJob& /*job*/, const std::string& /*state*/) {}
  // A checkpoint, an output, the base model or a dataset does not match its manifest.
  virtual void OnArtifactDamaged(const std::string& /*job_id*/) {}
  // The job is final. For a SUCCEEDED job: called after its model was published, or could not be published.
  virtual void OnJobEnded(const StoredJob& /*job*/) {}
};

// How trainers reach the report service.
struct ReportEndpoint {
  std::string address;                        // "": they only write their journals
  std::function<std::string()> read_ca = {};  // AttemptOrder::report_ca of an attempt that begins; null: without TLS
};

struct ReportAnswer {
  std::int64_t acknowledged = 0;  // every line up to this one is durable
  std::optional<Control> command;
  std::string checkpoint_request;  // id of a request that the trainer has not served yet; "": none
};

}  // namespace nibble::jobs
