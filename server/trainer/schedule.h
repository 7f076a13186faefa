#pragma once
#include <cstdint>

#include "server/jobs/job_spec.h"

namespace nibble::trainer {

// Learning rate of step `step` (from 0) of `max_steps`. In the warm-up it rises linearly, from lr / warm-up steps to
// lr. Then, by the schedule, it stays constant, or falls to lr * min_lr_ratio: linearly or as a cosine, or, with "wsd"
// (warm-up, stable, decay), linearly over the last tenth of all steps.
double LearningRate(const jobs::OptimConfig& config, std::int64_t step, std::int64_t max_steps);

}  // namespace nibble::trainer
