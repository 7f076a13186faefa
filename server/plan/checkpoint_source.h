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

// Finds a checkpoint by Checkpoint.name for a caller of `tenant` ("": sees all tenants; others' checkpoints look
// absent). Errors: NotFound (CHECKPOINT).
absl::StatusOr<registry::CheckpointSource> FindCheckpoint(jobs::JobController& jobs, const std::string& name,
                                                          const std::string& tenant);
// Returns the dataset that a job evaluates on, or holds rows out of; "" for none, also if the job no longer exists.
std::string EvalDatasetOf(jobs::JobController& jobs, const std::string& job_id);

}  // namespace nibble::plan
