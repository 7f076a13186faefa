// For tests of models whose parameters may be bf16: their elements as floats, and a comparison of their gradients with
// those of f32 parameters.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "server/data/loader.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// The elements of an f32 or bf16 tensor.
inline std::vector<float> Floats(const TensorRef& tensor) {
  std::vector<float> floats(static_cast<std::size_t>(tensor.count));
  const auto read = [&](const auto* elements) {
    for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = kernels::ToFloat(elements[i]);
  };
  tensor.type == ElementType::kF32 ? read(static_cast<const float*>(tensor.data))
                                   : read(static_cast<const kernels::BF16*>(tensor.data));
  return floats;
}

// Gives the parameters of `f32` the values of those of `bf16`. Expects that both models then have the same loss,
// because both forward passes read the values in the same way, and that the gradients of `bf16` are those of
// `f32`, rounded.
inline void ExpectGradientsOfEqualF32Parameters(TrainingModel& bf16, TrainingModel& f32, const data::MicroBatch& batch,
                                                std::uint64_t draw = 0) {
  const auto loss_of = [&](TrainingModel& model) {
    model.ZeroGrad();
    const auto loss = model.ForwardBackward(batch, 0.5, draw);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.value_or(NAN);
  };
  ASSERT_EQ(bf16.parameters().size(), f32.parameters().size());
  for (std::size_t i = 0; i < bf16.parameters().size(); ++i) {
    ASSERT_EQ(bf16.parameters()[i].value.type, ElementType::kBF16);
    const std::vector<float> values = Floats(bf16.parameters()[i].value);
    std::copy(values.begin(), values.end(), f32.parameters()[i].value.f32().begin());
  }
  ASSERT_TRUE(f32.Refresh().ok());
  const double loss = loss_of(bf16);
  EXPECT_EQ(loss_of(f32), loss);
  for (std::size_t i = 0; i < bf16.parameters().size(); ++i) {
    const Parameter& parameter = bf16.parameters()[i];
    ASSERT_EQ(parameter.grad.type, ElementType::kBF16);
    const std::vector<float> got = Floats(parameter.grad), want = Floats(f32.parameters()[i].grad);
    double worst = 0, largest = 0;
    for (std::size_t j = 0; j < want.size(); ++j) {
      worst = std::max(worst, static_cast<double>(std::fabs(got[j] - want[j])));
      largest = std::max(largest, static_cast<double>(std::fabs(want[j])));
    }
    EXPECT_GT(largest, 0) << parameter.name;
    // A tied embedding adds the gradients of head and embedding in bf16: three roundings, each of 2^-8.
    EXPECT_LE(worst, 3 * 0x1p-8 * largest) << parameter.name;
  }
}

}  // namespace nibble::trainer
