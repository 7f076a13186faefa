// The files that a job writes below the state directory, at their most. Included by server/plan/*.cc only.
#pragma once
#include <cstdint>

#include "server/jobs/job_spec.h"
#include "server/model/model_config.h"

namespace nibble::plan {

// Checkpoints, the trained model and what is made on the way to it, tokenizer files (`companion_bytes` beside each) and logs.
// base_bytes: as PlanMemory's.
std::int64_t PlanDisk(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                      std::int64_t companion_bytes, std::int64_t max_steps);

}  // namespace nibble::plan
