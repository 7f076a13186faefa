// Finds the checkpoints and evaluation data of jobs for server/registry, which does not know jobs.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/jobs/controller.h"
#include "server/jobs/job_spec.h"
#include "server/registry/checkpoint_source.h"
#include "server/store/checkpoints.h"

namespace nibble::plan {

// `spec`: of the job `job_id`, which wrote the checkpoint.
registry::CheckpointSource CheckpointSourceOf(const store::CheckpointInfo& checkpoint, const std::string& job_id,
                                              const jobs::JobSpec& spec);

// Finds a checkpoint by Checkpoint.name for a caller of `tenant` ("": sees all tenants). Checkpoints of other tenants
// look absent. Errors: NotFound (CHECKPOINT).
absl::StatusOr<registry::CheckpointSource> FindCheckpoint(jobs::JobController& jobs, const std::string& name,
                                                          const std::string& tenant);
// Returns the dataset on which a job evaluates, or from which it holds out rows to evaluate on; "": none, or the job no
// longer exists.
std::string EvalDatasetOf(jobs::JobController& jobs, const std::string& job_id);

}  // namespace nibble::plan
