#include "server/jobs/policy.h"

#include <algorithm>
#include <tuple>

namespace nibble::jobs {

std::vector<QueuedJob> Order(std::vector<QueuedJob> queue) {
  std::sort(queue.begin(), queue.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return std::make_tuple(-a.priority, a.submitted) < std::make_tuple(-b.priority, b.submitted);
  });
  return queue;
}

bool NeedsMoreThanThereIs(std::int64_t bytes, const QueueLimits& limits) {
  return limits.memory_bytes > 0 && bytes > limits.memory_bytes;
}

std::vector<std::string> PickNext(const std::vector<QueuedJob>& queue, const RunningLoad& running, const QueueLimits& limits,
                                  absl::Duration now) {
  std::vector<std::string> picked;
  RunningLoad load = running;
  std::int64_t left = limits.left_bytes;
  for (const QueuedJob& job : Order(queue)) {
    if (load.jobs >= limits.max_running) break;
    if (job.not_before > now) continue;
    const bool fits = job.memory_bytes <= left &&
                      (limits.memory_bytes == 0 || job.memory_bytes <= limits.memory_bytes - load.memory_bytes);
    if (!fits && (load.jobs > 0 || !NeedsMoreThanThereIs(job.memory_bytes, limits))) break;
    picked.push_back(job.id);
    ++load.jobs;
    load.memory_bytes += job.memory_bytes;
    left -= std::min(left, job.memory_bytes);
  }
  return picked;
}

absl::Duration Backoff(std::int64_t retry, const RetryOptions& options) {
  absl::Duration wait = options.first;
  for (std::int64_t i = 1; i < retry && wait < options.cap; ++i) wait *= 2;
  return std::min(wait, options.cap) * options.scale;
}

}  // namespace nibble::jobs
