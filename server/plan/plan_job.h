// Predicts the memory, disk space, steps and tokens of a job before it runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/plan/check_job.h"
#include "server/plan/method_plan.h"

namespace nibble::plan {

struct MemoryItem {
  const char* pool;  // "weights", "adapter", "optimizer", "activation", "workspace", "publishing"
  std::int64_t bytes = 0;
};

struct JobPlan {
  std::vector<MemoryItem> memory;  // of the trainer at its peak; their sum predicts VmHWM
  std::int64_t disk_bytes = 0;     // maximum size of the files that the job writes
  std::int64_t max_steps = 0;
  double epochs = 0;                // passes over the training data in all steps
  std::int64_t tokens = 0;          // through the model in all steps; capped at the largest int64
  std::int64_t trained_tokens = 0;  // of these, with a loss; capped likewise
  std::int64_t trained_parameters = 0;
  std::vector<PlanWarning> warnings;

  std::int64_t memory_bytes() const;
};

// `spec` must be resolved. Checks like CheckJob, and the number of steps like jobs::CheckSteps. Errors: those of both.
// Reads and tokenizes all data, or gets it from JobInputs::load, which may return examples with lengths but no tokens
// (TokenCache::GetLengths).
absl::StatusOr<JobPlan> PlanJob(const jobs::JobSpec& spec, const JobInputs& inputs);

}  // namespace nibble::plan
