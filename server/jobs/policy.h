#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace nibble::jobs {

// Which queued job starts next. Pure: the same input, the same answer.
struct QueuedJob {
  std::string id;
  std::int64_t priority = 0;    // higher first
  std::int64_t submitted = 0;   // order of submission: lower first among equals; a retried job keeps its own
  absl::Duration not_before;    // monotonic: waits out its backoff
  std::int64_t memory_bytes = 0;  // planned peak; 0: not known, takes a place only
  std::int64_t attempt = 0;       // 0 before the first start
  std::int64_t disk_bytes = 0;    // that it may still write; 0: not known
  // The principal: principals take turns. All jobs without an owner (there is no authentication) are those of one principal.
  std::string owner = {};
  std::string tenant = {};
  absl::Time queued = absl::UnixEpoch();             // when it last entered the queue
  absl::Time principal_started = absl::UnixEpoch();  // when a job of the principal was last started; 1970: never
};

struct QueueLimits {
  int max_running = 1;
  std::int64_t memory_bytes = 0;  // of all trainers together; 0: not bounded
  // For more trainers: what they share with others has so much left.
  std::int64_t left_bytes = std::numeric_limits<std::int64_t>::max();
  // Free bytes of the disk above the watermark, less the bytes that running jobs have yet to write.
  std::int64_t disk_left_bytes = std::numeric_limits<std::int64_t>::max();
  bool making_disk_room = false;  // so a job that is short of disk holds up those behind it
};

// What runs already.
struct RunningLoad {
  int jobs = 0;
  std::int64_t memory_bytes = 0;
};

// More than trainers may take, were it the only one.
bool NeedsMoreThanThereIs(std::int64_t bytes, const QueueLimits& limits);

// Raises each job by one step of priority for each `step` that it has waited, so that a stream of jobs of higher priority cannot hold it
// up for ever. A job of an owner waits from the last start of any job of that principal: a flood of one principal's old jobs must not
// outrank the first job of another. A step of 0 raises nothing.
void Age(std::vector<QueuedJob>& queue, absl::Time now, absl::Duration step);

// The queue in the order in which it will be served (backoff not looked at): its index is the queue position. Higher priority first.
// Within a priority principals take turns: the second job of each comes after the first of all. The principal whose last start is the
// longest ago has the first turn; between principals that never started a job, and within a principal, the order is that of submission.
std::vector<QueuedJob> Order(std::vector<QueuedJob> queue);

struct Picked {
  std::vector<std::string> start;  // ids to start now
  std::optional<QueuedJob> short_of_memory;
  struct ShortOfDisk {
    QueuedJob job;
    std::int64_t left_bytes = 0;  // that there are for it
  };
  std::vector<ShortOfDisk> short_of_disk;
};

// At most as many jobs as there is room for. A job that waits out its backoff does not hold up those behind it; one for which there is
// no memory yet does, or small jobs would keep a large one waiting for ever. A job that alone needs more than trainers may take starts
// when no other job runs; one that waits for others than trainers does not. A job that is short of disk holds up those behind it while
// a trainer runs, whose end may make room. While none runs only users can make room, and the others need not wait for them.
Picked PickNext(const std::vector<QueuedJob>& queue, const RunningLoad& running, const QueueLimits& limits, absl::Duration now);

struct RetryOptions {
  int max_retries = 5;  // counted exits after which the job fails
  absl::Duration first = absl::Seconds(10);
  absl::Duration cap = absl::Seconds(360);
  double scale = 1.0;  // tests make time short
};

// 10 s, 20 s, 40 s ... 360 s before retry 1, 2, 3 ... (docs/faults.md, R2).
absl::Duration Backoff(std::int64_t retry, const RetryOptions& options);

}  // namespace nibble::jobs
