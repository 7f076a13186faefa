// The policy that decides which queued job starts next. Pure: same input, same answer.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

// A job that waits to start.
struct QueuedJob {
  std::string id;
  std::int64_t priority = 0;      // higher first
  std::int64_t submitted = 0;     // order of submission: lower first among equals; a retried job keeps its own
  absl::Duration not_before;      // monotonic; end of its backoff
  std::int64_t memory_bytes = 0;  // planned peak; 0: unknown, counts as no memory
  std::int64_t attempt = 0;       // 0 before the first start
  std::int64_t disk_bytes = 0;    // that it may still write; 0: unknown
  // The principal; principals take turns. All jobs without an owner (no authentication) belong to one principal.
  std::string owner = {};
  std::string tenant = {};
  absl::Time queued = absl::UnixEpoch();             // when it last entered the queue
  absl::Time principal_started = absl::UnixEpoch();  // when a job of the principal was last started; 1970: never
};

struct QueueLimits {
  int max_running = 1;
  std::int64_t memory_bytes = 0;  // of all trainers together; 0: unlimited
  // Left for new trainers in the memory that trainers share with loaded models.
  std::int64_t left_bytes = std::numeric_limits<std::int64_t>::max();
  // Free bytes of the disk above the watermark, minus the bytes that running jobs still have to write.
  std::int64_t disk_left_bytes = std::numeric_limits<std::int64_t>::max();
  bool making_disk_room = false;  // if true, a job that is short of disk blocks those behind it
};

// The jobs that already run.
struct RunningLoad {
  int jobs = 0;
  std::int64_t memory_bytes = 0;
};

// True if `bytes` is more than trainers may take even when no other job runs.
bool NeedsMoreThanThereIs(std::int64_t bytes, const QueueLimits& limits);
// The message for such a job. Names the fields that reduce its memory, and their options.
std::string NeedsMoreMemoryText(const JobSpec& spec, std::int64_t bytes, std::int64_t available_bytes);

// Raises each job's priority by one for each `step` that it has waited, so that a stream of jobs of higher priority
// cannot block it forever. A job waits from its entry into the queue or, if it has an owner, from the last
// start of a job of that principal, if that was later: a flood of old jobs of one principal must not outrank the first
// job of another. A step of 0 raises nothing.
void Age(std::vector<QueuedJob>& queue, absl::Time now, absl::Duration step);

// The queue in the order of serving, ignoring backoff; the index is the queue position. Higher priority first. Within a
// priority principals take turns: the first job of every principal comes before the second job of any. The principal
// whose last start is the longest ago has the first turn. Principals that never started a job, and the jobs of one
// principal, are in order of submission.
std::vector<QueuedJob> Order(std::vector<QueuedJob> queue);

struct Picked {
  std::vector<std::string> start;  // ids to start now
  std::optional<QueuedJob> short_of_memory;
  struct ShortOfDisk {
    QueuedJob job;
    std::int64_t left_bytes = 0;  // available to the job
  };
  std::vector<ShortOfDisk> short_of_disk;
};

// Picks at most as many jobs as there is room for. A job in its backoff does not block those behind it. A job that is
// short of memory does, because otherwise small jobs could keep a large one waiting forever. A job that alone needs
// more memory than trainers may take starts when no other job runs. Any other job waits until loaded models leave it
// enough memory. A job that is short of disk blocks those behind it while a trainer runs, because the end of the
// trainer may free space, and while limits.making_disk_room is set. Otherwise only users can free space, so the others
// need not wait.
Picked PickNext(const std::vector<QueuedJob>& queue, const RunningLoad& running, const QueueLimits& limits,
                absl::Duration now);

struct RetryOptions {
  int max_retries = 5;  // counted retries; then the job fails
  absl::Duration first = absl::Seconds(10);
  absl::Duration cap = absl::Seconds(360);
  double scale = 1.0;  // tests shorten the waits
};

// 10 s, 20 s, 40 s ... 360 s before retry 1, 2, 3 ... (docs/faults.md, R2).
absl::Duration Backoff(std::int64_t retry, const RetryOptions& options);

}  // namespace nibble::jobs
