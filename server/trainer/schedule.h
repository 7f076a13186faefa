#pragma once
#include <cstdint>

#include "server/jobs/job_spec.h"

namespace nibble::trainer {

// Learning rate of step `step` (from 0) of `max_steps`: linear warm-up from lr / warm-up steps, then constant, linear
// or cosine down to lr * min_lr_ratio.
double LearningRate(const jobs::OptimConfig& config, std::int64_t step, std::int64_t max_steps);

}  // namespace nibble::trainer
