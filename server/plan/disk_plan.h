// Maximum size of the files that a job writes below the state directory. Private to server/plan and its tests.
#pragma once
#include <cstdint>

#include "server/jobs/job_spec.h"
#include "server/model/model_config.h"

namespace nibble::plan {

// Bytes of checkpoints, the trained model and its intermediate forms, tokenizer files (`companion_bytes` per form) and
// logs. base_bytes: as in MethodPlan.
std::int64_t PlanDisk(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                      std::int64_t companion_bytes, std::int64_t max_steps);

}  // namespace nibble::plan
