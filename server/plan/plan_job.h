// What a job will need and how long it is, told before it runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/plan/check_job.h"

namespace nibble::plan {

struct MemoryItem {
  const char* pool;  // "weights", "adapter", "optimizer", "activation", "workspace", "publishing"
  std::int64_t bytes = 0;
};

struct PlanWarning {
  std::string reason;   // "ROWS_TRUNCATED"
  std::string message;
  std::vector<std::int64_t> rows;  // lines of the set that the message names, or of the training set, from 1; the first data::kMaxNamedRows
};

struct JobPlan {
  std::vector<MemoryItem> memory;  // of the trainer at its peak; what VmHWM will show is their sum
  std::int64_t disk_bytes = 0;     // files that the job writes, at their most
  std::int64_t max_steps = 0;
  std::int64_t tokens = 0;            // through the model in all steps; the largest int64 where there are more
  std::int64_t trained_tokens = 0;    // of these, with a loss; likewise
  std::int64_t trained_parameters = 0;
  std::vector<PlanWarning> warnings;

  std::int64_t memory_bytes() const;
};

// Of a resolved spec. Checks as CheckJob does, with its errors; reads and tokenises all data, or has JobInputs::load get it. Needs the
// lengths of examples, not their tokens.
absl::StatusOr<JobPlan> PlanJob(const jobs::JobSpec& spec, const JobInputs& inputs);

}  // namespace nibble::plan
