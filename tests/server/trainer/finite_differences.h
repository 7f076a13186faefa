// Checks the gradients of a model in f32 against differences of its losses.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "server/data/loader.h"
#include "server/trainer/training_model.h"
#include "tests/support/random.h"

namespace nibble::trainer {

// 21 random tokens in one row of two segments.
inline data::MicroBatch TwoSegments(std::int64_t vocab_size) {
  data::MicroBatch batch;
  for (std::uint64_t i = 0; i < 21; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(support::UniformInt(5, i, vocab_size)));
  }
  batch.targets.assign(batch.tokens.begin() + 1, batch.tokens.end());
  batch.targets.push_back(-1);
  batch.targets[8] = -1;  // the end of the first segment
  batch.segments = {0, 9, 21};
  batch.rows = {0, 21};
  batch.num_rows = 1;
  batch.num_trained = 19;
  return batch;
}

// Along a direction d of each tensor: (L(w + e d) - L(w - e d)) / 2e = gradient * d. Half of d is the gradient itself,
// so that the difference is well above the rounding of f32 losses.
inline void ExpectFiniteDifferences(TrainingModel& model, const data::MicroBatch& batch) {
  const auto loss = [&] {
    EXPECT_TRUE(model.Refresh().ok());
    const auto sum = model.ForwardBackward(batch, 1.0, 0);
    EXPECT_TRUE(sum.ok()) << sum.status();
    return sum.value_or(NAN);
  };
  model.ZeroGrad();
  loss();
  std::vector<std::vector<float>> gradients;
  for (const Parameter& p : model.parameters()) gradients.emplace_back(p.grad.f32().begin(), p.grad.f32().end());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    const std::vector<float> values(parameter.value.f32().begin(), parameter.value.f32().end());
    std::vector<float> direction = support::NormalVector(100 + i, static_cast<std::int64_t>(values.size()));
    const auto norm = [](const std::vector<float>& v) {
      double sum = 0;
      for (const float x : v) sum += static_cast<double>(x) * x;
      return std::sqrt(sum);
    };
    const double of_gradient = norm(gradients[i]), of_direction = norm(direction);
    ASSERT_GT(of_gradient, 0) << parameter.name;
    double want = 0;
    for (std::size_t j = 0; j < values.size(); ++j) {
      direction[j] = static_cast<float>(direction[j] / of_direction + gradients[i][j] / of_gradient);
      want += static_cast<double>(direction[j]) * gradients[i][j];
    }
    constexpr float kStep = 1e-2f;
    const auto moved = [&](float by) {
      for (std::size_t j = 0; j < values.size(); ++j) parameter.value.f32()[j] = values[j] + by * direction[j];
      return loss();
    };
    const double got = (moved(kStep) - moved(-kStep)) / (2 * static_cast<double>(kStep));
    std::copy(values.begin(), values.end(), parameter.value.f32().begin());
    EXPECT_NEAR(got, want, 0.01 * want + 1e-3) << parameter.name;
  }
}

}  // namespace nibble::trainer
