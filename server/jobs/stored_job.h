// Records that the database stores and the API shows.
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
#include "server/store/checkpoints.h"

namespace nibble::jobs {

struct JobError {
  std::string code;    // canonical name, "INVALID_ARGUMENT"
  std::string reason;  // docs/errors.md
  std::string message;
  std::map<std::string, std::string> metadata = {};  // docs/errors.md; only for errors of the plan
};

// NotFound (JOB). Also returned for a job that the caller may not see.
absl::Status NoJob(const std::string& id);
// NotFound (CHECKPOINT).
absl::Status NoCheckpoint(const std::string& name);

struct StoredJob {
  std::string id;
  std::int64_t number = 0;  // order of submission
  JobState state = JobState::kQueued;
  std::int64_t attempt = 0;       // 0 before the first start
  std::int64_t retries = 0;       // counted retries
  JobSpec spec;                   // resolved
  JobDigests digests;             // fixed at creation; all "" for a job of an older server
  std::optional<JobError> error;  // why it FAILED or was CANCELLED
  // The keys in progress.h, absent until known, and the outcome's figures. The controller adds "queue_position" to
  // queued jobs.
  base::Json progress = base::Json::object();
  // The first of the kept checkpoints with the lowest evaluation loss. Not stored: the controller adds it to its
  // answers.
  std::optional<store::CheckpointInfo> best_checkpoint;
  // QUEUED after an attempt that ended early: why it ended, and when the next one starts. Not stored, as above.
  std::string wait_reason, wait_message;
  std::string output_digest;  // manifest digest of the output; "" until the job succeeded
  bool published = false;     // publishing is over: the output is a model, or publishing failed (PUBLISH_FAILED)
  std::int64_t last_sequence = 0;
  std::int64_t memory_bytes = 0;  // planned peak of its trainer; 0: not planned
  std::int64_t disk_bytes = 0;    // planned largest size of its files; 0: not planned
  bool keep_checkpoint = false;   // the cancel lets the trainer write a checkpoint first
  std::int64_t lost_in_row = 0;   // number of its latest attempts that were LOST in a row
  std::string owner;              // who created it; "" without authentication
  std::string tenant;             // of the owner
  absl::Time created;
  std::optional<absl::Time> started;  // first start
  std::optional<absl::Time> ended;
};

// Depends on state and attempt, which decide what may be done to a job, but not on progress: a client can cancel a
// running job that it has just read.
std::string Etag(const StoredJob& job);
using IfEtag = std::optional<std::string>;
// Aborted (ETAG_MISMATCH) if an etag is given and is not the job's.
absl::Status CheckEtag(const StoredJob& job, const IfEtag& etag);

struct StoredAttempt {
  std::int64_t attempt = 0;
  std::string token;
  std::string state;            // "RUNNING", then SUCCEEDED | FAILED | LOST | CANCELLED | PAUSED | PREEMPTED
  std::string handle;           // of its trainer (runner.h); "": not recorded
  std::optional<OomCount> oom;  // count when its trainer was started
};

struct Event {
  std::int64_t sequence = 0;  // of the job: 1, 2, 3 ...; thinning of steps leaves gaps
  std::int64_t attempt = 0;
  std::string type;
  absl::Time time;
  base::Json body;  // {"sequence", "time", "type", "attempt", fields...}: what `jobs watch --json` prints
};

}  // namespace nibble::jobs
