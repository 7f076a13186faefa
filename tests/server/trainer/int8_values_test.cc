// Parameters in int8: what the optimizer stores, and when nothing changes.
#include "server/trainer/int8_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/formats/int8.h"
#include "kernels/thread_pool.h"
#include "server/trainer/optimizer.h"
#include "tests/support/random.h"

namespace nibble::trainer {
namespace {

constexpr StoreDraws kNearest = {.to_nearest = true};

std::vector<std::int8_t> Codes(const TensorRef& tensor) {
  const auto* codes = static_cast<const std::int8_t*>(tensor.data);
  return {codes, codes + tensor.count};
}
std::vector<float> Scales(const TensorRef& tensor) { return {tensor.scales, tensor.scales + tensor.num_scales()}; }
std::vector<float> Values(const TensorRef& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.count));
  WidenInt8(tensor, values);
  return values;
}

TEST(Int8ValuesTest, StoresTheCodesAndScalesOfAConversionToInt8) {
  constexpr std::int64_t kRows = 7, kCols = 13;
  std::vector<float> values = support::NormalVector(1, kRows * kCols);
  std::fill(values.begin() + 2 * kCols, values.begin() + 3 * kCols, 0.0f);
  const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
  ASSERT_TRUE(StoreInt8(values, stored.ref(), 0, kNearest).ok());
  for (std::int64_t r = 0; r < kRows; ++r) {
    float absmax = 0;
    for (std::int64_t c = 0; c < kCols; ++c) {
      absmax = std::max(absmax, std::abs(values[static_cast<std::size_t>(r * kCols + c)]));
    }
    const float scale = std::max(absmax, kernels::kInt8MinAbsmax) / 127.0f;
    EXPECT_EQ(stored.ref().scales[r], scale);
    for (std::int64_t c = 0; c < kCols; ++c) {
      const auto i = static_cast<std::size_t>(r * kCols + c);
      EXPECT_EQ(Codes(stored.ref())[i], std::nearbyint(values[i] * (1.0f / scale))) << r << ", " << c;
    }
  }
}

TEST(Int8ValuesTest, OneScaleIsThatOfTheLargestElement) {
  std::vector<float> values = support::NormalVector(2, 6 * 8);
  values[17] = -9.0f;
  const TensorBuffer stored(ElementType::kInt8, 6 * 8, 8);
  ASSERT_TRUE(StoreInt8(values, stored.ref(), 1, {.to_nearest = true, .one_scale = true}).ok());
  EXPECT_EQ(Scales(stored.ref()), std::vector<float>(6, 9.0f / 127.0f));
  EXPECT_EQ(Codes(stored.ref())[17], -127);
}

// A row that a step does not change keeps its bytes, although its scale, computed again, may differ by a last bit.
TEST(Int8ValuesTest, RowsWithoutChangeKeepTheirBytes) {
  constexpr std::int64_t kRows = 64, kCols = 48;
  const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
  ASSERT_TRUE(StoreInt8(support::NormalVector(3, kRows * kCols), stored.ref(), 0, kNearest).ok());
  const std::vector<std::int8_t> codes = Codes(stored.ref());
  const std::vector<float> scales = Scales(stored.ref());
  std::vector<float> values = Values(stored.ref());
  for (int step = 1; step <= 100; ++step) {
    ASSERT_TRUE(StoreInt8(values, stored.ref(), step, {.seed = 1}).ok());
    ASSERT_EQ(Codes(stored.ref()), codes) << step;
    ASSERT_EQ(Scales(stored.ref()), scales) << step;
  }
  values[5 * kCols] = 100.0f;
  ASSERT_TRUE(StoreInt8(values, stored.ref(), 101, {.seed = 1}).ok());
  const std::vector<std::int8_t> after = Codes(stored.ref());
  EXPECT_TRUE(std::equal(codes.begin(), codes.begin() + 5 * kCols, after.begin())) << "rows 0 to 4";
  EXPECT_TRUE(std::equal(codes.begin() + 6 * kCols, codes.end(), after.begin() + 6 * kCols)) << "rows from 6 on";
  EXPECT_NE(Scales(stored.ref())[5], scales[5]);
}

// Each row has the scale 1: whole values never move in a million draws, and 0.8 is rounded up as often as it should.
TEST(Int8ValuesTest, RoundsWithTheRightProbability) {
  constexpr std::int64_t kRows = 250, kCols = 1024;
  constexpr int kSteps = 8;
  std::vector<float> values(kRows * kCols);
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const std::int64_t c = i % kCols;
    values[static_cast<std::size_t>(i)] = c == 0 ? 127.0f : c % 2 == 0 ? static_cast<float>(c % 100 - 50) : 0.8f;
  }
  std::int64_t draws = 0, up = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
    ASSERT_TRUE(StoreInt8(values, stored.ref(), step, {.seed = 7, .tensor = 3}).ok());
    const std::vector<std::int8_t> codes = Codes(stored.ref());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (i % 2 == 0) {
        ASSERT_EQ(codes[i], values[i]) << i;
      } else {
        ASSERT_TRUE(codes[i] == 0 || codes[i] == 1);
        ++draws;
        up += codes[i];
      }
    }
  }
  ASSERT_GT(draws, 1'000'000);
  const double sigma = std::sqrt(0.8 * 0.2 * static_cast<double>(draws));
  EXPECT_NEAR(static_cast<double>(up), 0.8 * static_cast<double>(draws), 4 * sigma);
}

TEST(Int8ValuesTest, DrawsDependOnSeedTensorAndStepAlone) {
  constexpr std::int64_t kRows = 300, kCols = 700;
  const std::vector<float> values = support::NormalVector(4, kRows * kCols);
  const auto store = [&](const StoreDraws& draws, std::int64_t step, const kernels::Stream& stream = {}) {
    const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
    EXPECT_TRUE(StoreInt8(values, stored.ref(), step, draws, stream).ok());
    return Codes(stored.ref());
  };
  kernels::ThreadPool pool(3);
  const kernels::Stream threads = {.pool = &pool};
  const auto codes = store({.seed = 1, .tensor = 2}, 3);
  EXPECT_EQ(store({.seed = 1, .tensor = 2}, 3, threads), codes);
  EXPECT_NE(store({.seed = 2, .tensor = 2}, 3), codes);
  EXPECT_NE(store({.seed = 1, .tensor = 3}, 3), codes);
  EXPECT_NE(store({.seed = 1, .tensor = 2}, 4), codes);
}

TEST(Int8ValuesTest, ValueThatIsNotFiniteChangesNothing) {
  const TensorBuffer stored(ElementType::kInt8, 4 * 8, 8);
  ASSERT_TRUE(StoreInt8(support::NormalVector(5, 4 * 8), stored.ref(), 0, kNearest).ok());
  const std::vector<std::int8_t> codes = Codes(stored.ref());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = support::NormalVector(6, 4 * 8);
    values[30] = bad;
    EXPECT_TRUE(absl::IsInvalidArgument(StoreInt8(values, stored.ref(), 1, kNearest)));
    EXPECT_EQ(Codes(stored.ref()), codes);
  }
}

class Int8OptimizerTest : public ::testing::TestWithParam<std::string> {
 protected:
  Int8OptimizerTest() { config_.optimizer = GetParam(); }

  jobs::OptimConfig config_;
};

// The optimizer changes the values of the codes as it changes f32 parameters of the same values.
TEST_P(Int8OptimizerTest, StepsAreThoseOfF32ThenStored) {
  constexpr std::int64_t kRows = 17, kCols = 300;
  const Optimizer optimizer(config_);
  const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
  ASSERT_TRUE(StoreInt8(support::NormalVector(8, kRows * kCols), stored.ref(), 0, kNearest).ok());
  Moments moments = optimizer.MakeMoments(kRows * kCols), widened = optimizer.MakeMoments(kRows * kCols);
  ASSERT_TRUE(optimizer.Check("w", stored.ref(), TensorRef(), moments).ok());
  for (int step = 1; step <= 5; ++step) {
    std::vector<float> gradient = support::NormalVector(static_cast<std::uint64_t>(step), kRows * kCols);
    std::vector<float> values = Values(stored.ref());
    const TensorBuffer want(ElementType::kInt8, kRows * kCols, kCols);
    ASSERT_TRUE(optimizer.Step(step, 1e-2, values, gradient, widened).ok());
    const StoreDraws draws = {.seed = 5, .tensor = 1};
    ASSERT_TRUE(StoreInt8(values, want.ref(), step, draws).ok());
    ASSERT_TRUE(optimizer.Step(step, 1e-2, stored.ref(), gradient, moments, {}, draws).ok());
    EXPECT_EQ(Codes(stored.ref()), Codes(want.ref())) << step;
    EXPECT_EQ(Scales(stored.ref()), Scales(want.ref())) << step;
  }
}

// A run's tensors differ in size, and rows that changed in one may not change in the next.
TEST_P(Int8OptimizerTest, BuffersOfOtherTensorsChangeNothing) {
  const Optimizer optimizer(config_);
  Int8Buffers buffers;
  std::uint64_t seed = 0;
  for (const std::int64_t rows : {40, 3, 64, 17}) {
    const std::int64_t cols = 700 / rows + 9, count = rows * cols;
    const TensorBuffer alone(ElementType::kInt8, count, cols), reused(ElementType::kInt8, count, cols);
    const std::vector<float> values = support::NormalVector(++seed, count);
    for (const TensorBuffer* tensor : {&alone, &reused})
      ASSERT_TRUE(StoreInt8(values, tensor->ref(), 0, kNearest).ok());
    std::vector<float> gradient = support::NormalVector(100 + seed, count);
    for (std::int64_t i = 0; i < count; ++i) {
      if (i / cols % 2 == 0) gradient[static_cast<std::size_t>(i)] = 0.0f;  // every second row keeps its bytes
    }
    const std::vector<std::int8_t> before = Codes(alone.ref());
    Moments of_alone = optimizer.MakeMoments(count), of_reused = optimizer.MakeMoments(count);
    const StoreDraws draws = {.seed = 5, .tensor = 1};
    ASSERT_TRUE(optimizer.Step(1, 1e-1, alone.ref(), gradient, of_alone, {}, draws).ok());
    ASSERT_TRUE(optimizer.Step(1, 1e-1, reused.ref(), gradient, of_reused, {}, draws, &buffers).ok());
    EXPECT_EQ(Codes(reused.ref()), Codes(alone.ref())) << rows;
    EXPECT_EQ(Scales(reused.ref()), Scales(alone.ref())) << rows;
    EXPECT_NE(Codes(alone.ref()), before) << rows;
  }
  EXPECT_EQ(buffers.changed.size(), 64u) << "the memory was used";
}

// Steps far below a code: rounded to nearest, none of them would count.
TEST_P(Int8OptimizerTest, SmallStepsCountOnAverage) {
  constexpr std::int64_t kRows = 100, kCols = 1000;
  constexpr double kLr = 0.02;  // of a code, because the scale is 1
  const Optimizer optimizer(config_);
  const auto mean_after_a_step = [&](bool to_nearest) {
    const TensorBuffer stored(ElementType::kInt8, kRows * kCols, kCols);
    std::vector<float> values(kRows * kCols, 10.0f);
    for (std::int64_t r = 0; r < kRows; ++r) values[static_cast<std::size_t>(r * kCols)] = 127.0f;
    EXPECT_TRUE(StoreInt8(values, stored.ref(), 0, kNearest).ok());
    std::vector<float> gradient(kRows * kCols, -1.0f);
    for (std::int64_t r = 0; r < kRows; ++r) gradient[static_cast<std::size_t>(r * kCols)] = 0.0f;  // keeps the scale
    Moments moments = optimizer.MakeMoments(kRows * kCols);
    EXPECT_TRUE(
        optimizer.Step(1, kLr, stored.ref(), gradient, moments, {}, {.seed = 3, .to_nearest = to_nearest}).ok());
    double sum = 0;
    for (const std::int8_t code : Codes(stored.ref())) sum += code == 127 ? 0 : code;
    return sum / static_cast<double>(kRows * (kCols - 1));
  };
  EXPECT_EQ(mean_after_a_step(true), 10.0);
  const double sigma = std::sqrt(kLr * (1 - kLr) / static_cast<double>(kRows * (kCols - 1)));
  EXPECT_NEAR(mean_after_a_step(false), 10.0 + kLr, 4 * sigma + 0.01 * kLr);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Int8OptimizerTest, ::testing::Values("adamw", "adamw_8bit", "sgd", "lion"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nibble::trainer
