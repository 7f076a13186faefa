#include "server/trainer/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "server/trainer/schedule.h"

namespace nibble::trainer {
namespace {

// tests/golden/trainer/make_adamw_golden.py: torch.optim.AdamW.
TEST(AdamWTest, MatchesTorch) {
  std::ifstream golden(NIBBLE_SOURCE_DIR "/tests/golden/trainer/adamw.txt");
  const AdamWConfig config = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  std::vector<float> parameter;
  for (int i = 0; i < 5; ++i) parameter.push_back(static_cast<float>(std::cos(i)));
  Moments moments = {std::vector<float>(5), std::vector<float>(5)};
  int compared = 0;
  int wanted_step = 0;
  golden >> wanted_step;
  for (int step = 1; step <= 10; ++step) {
    std::vector<float> gradient;
    for (int i = 0; i < 5; ++i) gradient.push_back(static_cast<float>(std::sin(i + step)));
    ASSERT_TRUE(AdamWStep(config, step, 1e-2, parameter, gradient, moments).ok());
    if (step != wanted_step) continue;
    for (int i = 0; i < 5; ++i) {
      float want = 0;
      golden >> want;
      // A step rounds about ten times in f32; parameters are at most 1.
      EXPECT_NEAR(parameter[static_cast<std::size_t>(i)], want, 10 * step * 1.2e-7)
          << "step " << step << " element " << i;
      ++compared;
    }
    golden >> wanted_step;
  }
  EXPECT_EQ(compared, 15);
}

TEST(AdamWTest, RefusesOtherElementTypesAndChangesNothing) {
  // Six elements; a type with scales has blocks of four.
  const auto make = [](ElementType type) { return TensorBuffer(type, 6, HasScales(type) ? 4 : 0); };
  for (const ElementType value : {ElementType::kF32, ElementType::kBF16, ElementType::kInt8}) {
    for (const ElementType moment : {ElementType::kF32, ElementType::kMoment8}) {
      const TensorBuffer values = make(value), gradients = std::vector<float>(6, 1.0f);
      Moments moments = {make(moment), make(moment)};
      const absl::Status status = AdamWStep({}, 1, 1e-2, values.ref(), gradients.ref(), moments);
      if (value != ElementType::kInt8 && moment == ElementType::kF32) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      const std::string wanted = value == ElementType::kInt8 ? "int8 values" : "moment8 first moments";
      EXPECT_NE(status.message().find(wanted), std::string::npos) << status;
      for (const std::byte byte : values.ref().bytes()) EXPECT_EQ(byte, std::byte{0});
    }
  }
}

TEST(ScaleTest, ThreadsChangeNoBit) {
  std::vector<float> want;
  for (int i = 0; i < 200000; ++i) want.push_back(std::sin(static_cast<float>(i)));
  kernels::ThreadPool pool(3);
  std::vector<float> got = want;
  for (float& v : want) v *= 0.3f;
  Scale(got, 0.3f, {.pool = &pool});
  EXPECT_EQ(got, want);
}

TEST(GlobalNormTest, IsTheNormOverAllTensors) {
  std::vector<float> a = {3.0f};
  TensorBuffer b(ElementType::kBF16, 2);
  static_cast<kernels::BF16*>(b.ref().data)[1] = kernels::ToBF16(-4.0f);
  EXPECT_DOUBLE_EQ(GlobalNorm({a, b.ref(), {}}), 5.0);
}

TEST(ScheduleTest, WarmsUpThenFalls) {
  jobs::OptimConfig config;
  config.lr = 1.0;
  config.warmup_steps = 4;
  config.schedule = "linear";
  config.min_lr_ratio = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 14), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(config, 3, 14), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 4, 14), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 9, 14), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 14, 14), 0.1);
  config.schedule = "cosine";
  EXPECT_NEAR(LearningRate(config, 9, 14), 0.1 + 0.9 * 0.5, 1e-12);
  config.schedule = "constant";
  EXPECT_DOUBLE_EQ(LearningRate(config, 13, 14), 1.0);
}

TEST(ScheduleTest, WsdIsConstantAndFallsInTheLastTenth) {
  jobs::OptimConfig config;
  config.lr = 1.0;
  config.warmup_steps = 2;
  config.schedule = "wsd";
  config.min_lr_ratio = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 40), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 2, 40), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 36, 40), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 38, 40), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 39, 40), 0.1 + 0.9 * 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(config, 2, 3), 1.0) << "fewer than ten steps: the last one is not lower";
}

TEST(ScheduleTest, WarmUpRatioIsAShareOfMaxSteps) {
  jobs::OptimConfig config;
  config.lr = 2.0;
  config.warmup_ratio = 0.1;
  config.schedule = "constant";
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 20), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 1, 20), 2.0);
}

}  // namespace
}  // namespace nibble::trainer
