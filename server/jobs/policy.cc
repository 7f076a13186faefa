#include "server/jobs/policy.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "server/base/human_bytes.h"
#include "server/base/strings.h"

namespace nibble::jobs {

std::vector<QueuedJob> Order(std::vector<QueuedJob> queue) {
  std::sort(queue.begin(), queue.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return std::make_tuple(-a.priority, a.submitted) < std::make_tuple(-b.priority, b.submitted);
  });
  // The turn of a job: the number of jobs before it that have the same principal and priority.
  std::map<std::tuple<std::int64_t, std::string, std::string>, std::int64_t> turns;
  std::vector<std::pair<std::int64_t, QueuedJob>> taken;
  taken.reserve(queue.size());
  for (QueuedJob& job : queue) {
    const std::int64_t turn = turns[{job.priority, job.tenant, job.owner}]++;
    taken.emplace_back(turn, std::move(job));
  }
  std::sort(taken.begin(), taken.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(-a.second.priority, a.first, a.second.principal_started, a.second.submitted) <
           std::make_tuple(-b.second.priority, b.first, b.second.principal_started, b.second.submitted);
  });
  for (std::size_t i = 0; i < queue.size(); ++i) queue[i] = std::move(taken[i].second);
  return queue;
}

void Age(std::vector<QueuedJob>& queue, absl::Time now, absl::Duration step) {
  if (step <= absl::ZeroDuration()) return;
  for (QueuedJob& job : queue) {
    const absl::Time since = job.owner.empty() ? job.queued : std::max(job.queued, job.principal_started);
    absl::Duration rest;
    // Not below 0: a clock that was set back must not lower the priority.
    job.priority += std::max<std::int64_t>(0, absl::IDivDuration(now - since, step, &rest));
  }
}

bool NeedsMoreThanThereIs(std::int64_t bytes, const QueueLimits& limits) {
  return limits.memory_bytes > 0 && bytes > limits.memory_bytes;
}

std::string NeedsMoreMemoryText(const JobSpec& spec, std::int64_t bytes, std::int64_t available_bytes) {
  return base::StrCat("the job needs ", base::HumanBytes(bytes), " of memory, all trainers together may use ",
                      base::HumanBytes(available_bytes), ": reduce run.micro_batch (", spec.run.micro_batch,
                      ") or data.max_seq_len (", spec.data.max_seq_len, "); options --micro-batch and --seq-len");
}

Picked PickNext(const std::vector<QueuedJob>& queue, const RunningLoad& running, const QueueLimits& limits,
                absl::Duration now) {
  Picked picked;
  RunningLoad load = running;
  std::int64_t left = limits.left_bytes, disk_left = limits.disk_left_bytes;
  for (const QueuedJob& job : Order(queue)) {
    if (load.jobs >= limits.max_running) break;
    if (job.not_before > now) continue;
    const bool fits = job.memory_bytes <= left &&
                      (limits.memory_bytes == 0 || job.memory_bytes <= limits.memory_bytes - load.memory_bytes);
    if (!fits && (load.jobs > 0 || !NeedsMoreThanThereIs(job.memory_bytes, limits))) {
      picked.short_of_memory = job;
      break;
    }
    if (job.disk_bytes > disk_left) {
      picked.short_of_disk.push_back({job, disk_left});
      if (load.jobs > 0 || limits.making_disk_room) break;
      continue;
    }
    picked.start.push_back(job.id);
    ++load.jobs;
    load.memory_bytes += job.memory_bytes;
    left -= std::min(left, job.memory_bytes);
    disk_left -= job.disk_bytes;
  }
  return picked;
}

absl::Duration Backoff(std::int64_t retry, const RetryOptions& options) {
  absl::Duration wait = options.first;
  for (std::int64_t i = 1; i < retry && wait < options.cap; ++i) wait *= 2;
  return std::min(wait, options.cap) * options.scale;
}

}  // namespace nibble::jobs
