#include "server/trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::trainer {
namespace {

constexpr double kDecayShare = 0.1;  // wsd: share of all steps in which the learning rate falls

}  // namespace

double LearningRate(const jobs::OptimConfig& config, std::int64_t step, std::int64_t max_steps) {
  const std::int64_t warmup =
      config.warmup_steps.has_value()
          ? *config.warmup_steps
          : static_cast<std::int64_t>(std::ceil(config.warmup_ratio.value_or(0.0) * static_cast<double>(max_steps)));
  if (step < warmup) return config.lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double rest = static_cast<double>(std::max<std::int64_t>(max_steps - warmup, 1));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / rest);
  double factor = 1.0;
  if (config.schedule == "linear") factor = 1.0 - progress;
  if (config.schedule == "cosine") factor = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  if (config.schedule == "wsd") {
    const double decay = std::max(1.0, static_cast<double>(max_steps) * kDecayShare);
    factor = std::min(1.0, static_cast<double>(max_steps - step) / decay);
  }
  return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * factor);
}

}  // namespace nibble::trainer
