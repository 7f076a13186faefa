#pragma once
#include <cstdint>

#include "server/jobs/job_spec.h"

namespace nibble::trainer {

// Learning rate of step `step` (from 0) of `max_steps`: linear warm-up from lr / warm-up steps, then constant; or
// linear or cosine down to lr * min_lr_ratio; or, with "wsd" (warm-up, stable, decay), constant and then linear over
// the last tenth of all steps.
double LearningRate(const jobs::OptimConfig& config, std::int64_t step, std::int64_t max_steps);

}  // namespace nibble::trainer
