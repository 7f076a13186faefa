#pragma once
#include <string>

#include "server/jobs/job_spec.h"
#include "server/registry/checkpoint_source.h"
#include "server/store/checkpoints.h"

namespace nibble::plan {

// `spec`: of the job `job_id`, which wrote the checkpoint.
registry::CheckpointSource CheckpointSourceOf(const store::CheckpointInfo& checkpoint, const std::string& job_id,
                                              const jobs::JobSpec& spec);

}  // namespace nibble::plan
