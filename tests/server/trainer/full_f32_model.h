// A decoder whose weights are all trained in f32. For tests.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/model_config.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

struct FullF32Options {
  std::uint64_t init_seed = 0;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};
};

// Matrices are drawn from a normal distribution with standard deviation 0.1; norms are 1 and biases 0.
absl::StatusOr<std::unique_ptr<TrainingModel>> MakeFullF32Model(const model::ModelConfig& config,
                                                                const FullF32Options& options,
                                                                const kernels::Stream& stream);

}  // namespace nibble::trainer
