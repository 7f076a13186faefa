// What the database keeps and the API shows.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/json.h"
#include "server/jobs/job_digests.h"
#include "server/jobs/job_spec.h"
#include "server/jobs/job_state.h"
#include "server/jobs/oom_watch.h"
#include "server/jobs/runner.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

struct JobError {
  std::string code;    // canonical name, "INVALID_ARGUMENT"
  std::string reason;  // docs/errors.md
  std::string message;
  std::map<std::string, std::string> metadata = {};  // docs/errors.md; of an error of the plan
};

// Of a job that its user ended.
inline JobError CancelledByUser() { return {"CANCELLED", "USER", "cancelled by the user"}; }

// NotFound (JOB). Also the answer about a job that the caller may not see.
absl::Status NoJob(const std::string& id);
absl::Status NoCheckpoint(const std::string& name);

struct JobRecord {
  std::string id;
  std::int64_t number = 0;  // order of submission
  JobState state = JobState::kQueued;
  std::int64_t attempt = 0;  // 0 before the first start
  std::int64_t retries = 0;  // exits that counted
  JobSpec spec;              // resolved
  JobDigests digests;        // fixed when it was created; all "" of a job of an older server
  std::optional<JobError> error;  // why it FAILED or was CANCELLED
  // "step", "max_steps", "tokens", "tokens_per_s", "loss", "lr", "grad_norm", "eval_loss", "eval_loss_int8",
  // "peak_memory_bytes", "kernel_launches_per_step", "epoch", "percent", ...: numbers only, absent until known; the
  // controller adds "queue_position" to what is queued.
  base::Json progress = base::Json::object();
  // Of those that are kept, the first of the lowest evaluation loss. The controller adds it to what it answers.
  std::optional<store::CheckpointInfo> best_checkpoint;
  std::string output_digest;  // manifest digest of the output; "" until the job succeeded
  bool published = false;     // the output is a model now
  std::int64_t last_sequence = 0;
  std::int64_t memory_bytes = 0;  // planned peak of its trainer; 0: not planned
  std::int64_t disk_bytes = 0;    // planned files, at their most; 0: not planned
  bool keep_checkpoint = false;   // cancelled, but a checkpoint first
  std::int64_t lost_in_row = 0;   // its last attempts that were LOST, one after the other
  std::string owner;   // who created it; "" where nobody has to say who he is
  std::string tenant;  // of the owner
  absl::Time created;
  std::optional<absl::Time> started;  // first start
  std::optional<absl::Time> ended;
};

// Changes with what decides whether a job may be moved: state and attempt. Not with its progress: a client can cancel a running
// job that it has just looked at.
std::string Etag(const JobRecord& job);
using IfEtag = std::optional<std::string>;
// Aborted (ETAG_MISMATCH) unless the job is as the etag says, where one is given.
absl::Status CheckEtag(const JobRecord& job, const IfEtag& etag);

struct AttemptRecord {
  std::int64_t attempt = 0;
  std::string token;
  std::string state;  // "RUNNING", then SUCCEEDED | FAILED | LOST | CANCELLED | PAUSED | PREEMPTED
  std::optional<ProcessId> process;
  std::optional<OomCount> oom;  // when its trainer was started
};

struct Event {
  std::int64_t sequence = 0;  // of the job: 1, 2, 3 ... without a gap
  std::int64_t attempt = 0;
  std::string type;
  absl::Time time;
  base::Json body;  // {"sequence", "time", "type", "attempt", fields...}: what `jobs watch --json` prints
};

}  // namespace nibble::jobs
