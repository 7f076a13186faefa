#include "server/trainer/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/thread_pool.h"
#include "server/trainer/dynamic_map.h"
#include "tests/support/random.h"

namespace nibble::trainer {
namespace {

// tests/golden/trainer/make_optimizer_golden.py: values by name and step.
std::map<std::pair<std::string, int>, std::vector<float>> Golden() {
  std::map<std::pair<std::string, int>, std::vector<float>> golden;
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/golden/trainer/optimizer.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int step = 0;
    words >> name >> step;
    for (float value = 0; words >> value;) golden[{name, step}].push_back(value);
  }
  return golden;
}

jobs::OptimConfig Config(const std::string& optimizer) {
  jobs::OptimConfig config;
  config.optimizer = optimizer;
  return config;
}

// Runs ten steps on cos(i) with gradients sin(i + step), and compares every `every`-th element with the golden values.
void ExpectGolden(const std::string& name, const jobs::OptimConfig& config, std::int64_t size, std::size_t every,
                  double bound) {
  const auto golden = Golden();
  const Optimizer optimizer(config);
  std::vector<float> parameter;
  for (std::int64_t i = 0; i < size; ++i) parameter.push_back(static_cast<float>(std::cos(i)));
  Moments moments = optimizer.MakeMoments(size);
  int compared = 0;
  for (int step = 1; step <= 10; ++step) {
    std::vector<float> gradient;
    for (std::int64_t i = 0; i < size; ++i) gradient.push_back(static_cast<float>(std::sin(i + step)));
    ASSERT_TRUE(optimizer.Step(step, 1e-2, parameter, gradient, moments).ok());
    const auto found = golden.find({name, step});
    if (found == golden.end()) continue;
    for (std::size_t i = 0; i < found->second.size(); ++i) {
      EXPECT_NEAR(parameter[i * every], found->second[i], step * bound) << name << " step " << step << " element " << i;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 3);
}

// A step rounds about five times in f32; parameters are at most 1.
TEST(OptimizerTest, SgdMatchesTorch) { ExpectGolden("sgd", Config("sgd"), 5, 1, 5 * 1.2e-7); }

TEST(OptimizerTest, LionMatchesBitsandbytes) {
  jobs::OptimConfig config = Config("lion");
  config.beta2 = 0.99;
  config.weight_decay = 0.1;
  ExpectGolden("lion", config, 5, 1, 5 * 1.2e-7);
}

// The last bit of a moment in f32 may differ from torchao's, and then the moment may get the neighbouring code. This
// happens to none of the compared elements.
TEST(OptimizerTest, AdamW8BitMatchesTorchao) {
  jobs::OptimConfig config = Config("adamw_8bit");
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  ExpectGolden("adamw_8bit", config, 4096, 100, 10 * 1.2e-7);
}

// Within a block, the sizes of the gradients span more than four decades. On average, each element has a gradient other
// than 0 in one step of ten, as the embeddings of rare tokens do.
TEST(OptimizerTest, SteepBlockKeepsItsStepsShort) {
  constexpr std::int64_t kCount = 4096;
  constexpr double kLr = 1e-3;
  const Optimizer optimizer(Config("adamw_8bit"));
  std::vector<float> parameter(kCount, 0.0f), size(kCount);
  for (std::size_t i = 0; i < kCount; ++i) size[i] = std::pow(10.0f, support::Normal(1, i));
  Moments moments = optimizer.MakeMoments(kCount);
  float longest = 0;
  for (int step = 1; step <= 200; ++step) {
    const auto seed = static_cast<std::uint64_t>(step);
    std::vector<float> gradient(kCount, 0.0f), before = parameter;
    for (std::size_t i = 0; i < kCount; ++i) {
      if (support::Uniform(1000 + seed, i) < 0.1f) gradient[i] = size[i] * support::Normal(seed, i);
    }
    ASSERT_TRUE(optimizer.Step(step, kLr, parameter, gradient, moments).ok());
    for (std::size_t i = 0; i < kCount; ++i) longest = std::max(longest, std::abs(parameter[i] - before[i]));
  }
  EXPECT_LT(longest, 5 * kLr);
}

TEST(OptimizerTest, WeightDecayOfSgdIsDecoupled) {
  jobs::OptimConfig config = Config("sgd");
  config.weight_decay = 0.5;
  std::vector<float> parameter = {2.0f}, gradient = {0.0f};
  const Optimizer optimizer(config);
  Moments moments = optimizer.MakeMoments(1);
  ASSERT_TRUE(optimizer.Step(1, 0.1, parameter, gradient, moments).ok());
  EXPECT_FLOAT_EQ(parameter[0], 1.9f);
  EXPECT_EQ(moments.m.ref().f32()[0], 0.0f);
}

TEST(OptimizerTest, MomentsHaveTheTypesOfTheOptimizer) {
  const Moments large = Optimizer(Config("adamw_8bit")).MakeMoments(4097);
  EXPECT_EQ(large.m.ref().type, ElementType::kMoment8);
  EXPECT_EQ(large.v.ref().type, ElementType::kMoment8);
  EXPECT_EQ(large.m.ref().num_scales(), 17);
  EXPECT_EQ(Optimizer(Config("adamw_8bit")).MakeMoments(4095).m.ref().type, ElementType::kF32);
  for (const char* one : {"sgd", "lion"}) {
    const Moments moments = Optimizer(Config(one)).MakeMoments(5000);
    EXPECT_EQ(moments.m.ref().type, ElementType::kF32);
    EXPECT_EQ(moments.v.ref().data, nullptr);
  }
}

TEST(OptimizerTest, ThreadsChangeNoBit) {
  kernels::ThreadPool pool(3);
  for (const char* name : {"adamw", "adamw_8bit", "sgd", "lion"}) {
    const Optimizer optimizer(Config(name));
    std::vector<std::vector<float>> results;
    for (const kernels::Stream& stream : {kernels::Stream{}, kernels::Stream{.pool = &pool}}) {
      std::vector<float> parameter = support::NormalVector(1, 300'001);
      Moments moments = optimizer.MakeMoments(300'001);
      for (int step = 1; step <= 3; ++step) {
        std::vector<float> gradient = support::NormalVector(10 + static_cast<std::uint64_t>(step), 300'001);
        ASSERT_TRUE(optimizer.Step(step, 1e-3, parameter, gradient, moments, stream).ok());
      }
      results.push_back(std::move(parameter));
    }
    EXPECT_EQ(results[0], results[1]) << name;
  }
}

TEST(OptimizerTest, RefusesOtherElementTypesAndChangesNothing) {
  for (const char* name : {"adamw_8bit", "sgd", "lion"}) {
    const Optimizer optimizer(Config(name));
    const TensorBuffer values(ElementType::kMoment8, 6, 3), gradients = std::vector<float>(6, 1.0f);
    Moments moments = optimizer.MakeMoments(6);
    EXPECT_TRUE(absl::IsUnimplemented(optimizer.Step(1, 1e-2, values.ref(), gradients.ref(), moments))) << name;
    for (const std::byte byte : values.ref().bytes()) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(DynamicMapTest, HasTheValuesOfBitsandbytes) {
  const auto golden = Golden();
  for (const auto& [name, map] :
       {std::pair("signed_map", &DynamicMap::Signed()), {"unsigned_map", &DynamicMap::Unsigned()}}) {
    const std::vector<float>& want = golden.at({name, 0});
    ASSERT_EQ(want.size(), 256u);
    // torch rounds the equidistant points in another order: the last bit may differ.
    for (int code = 0; code < 256; ++code) {
      EXPECT_FLOAT_EQ(map->Value(static_cast<std::uint8_t>(code)), want[static_cast<std::size_t>(code)]) << name;
    }
  }
}

// Compares with a search over all values, around every midpoint and for random values of every magnitude.
TEST(DynamicMapTest, NearestIsExact) {
  for (const auto* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    const auto expect_nearest = [&](float x) {
      int best = 0;
      for (int code = 1; code < 256; ++code) {
        const auto distance = [&](int of) {
          return std::abs(static_cast<double>(map->Value(static_cast<std::uint8_t>(of))) - static_cast<double>(x));
        };
        if (distance(code) < distance(best)) best = code;
      }
      ASSERT_EQ(map->Nearest(x), best) << x;
    };
    for (int code = 0; code < 256; ++code) {
      const float value = map->Value(static_cast<std::uint8_t>(code));
      EXPECT_EQ(map->Nearest(value), code);
      if (code == 255) break;
      const float next = map->Value(static_cast<std::uint8_t>(code + 1));
      const auto middle = static_cast<float>((static_cast<double>(value) + static_cast<double>(next)) / 2);
      for (const float x : {std::nextafter(middle, -2.0f), middle, std::nextafter(middle, 2.0f)}) expect_nearest(x);
    }
    const bool is_signed = map->Value(0) < 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      const float magnitude = std::pow(10.0f, -8.0f * static_cast<float>(support::Uniform(3, i)));
      expect_nearest(is_signed && i % 2 == 0 ? -magnitude : magnitude);
    }
    for (const float x : {0.0f, is_signed ? -0.0f : 0.0f, 1.0f, is_signed ? -1.0f : 1e-38f}) expect_nearest(x);
  }
}

// Each step adds less than half a unit of the bf16 parameter: without stochastic rounding, the parameter would not move
// at all.
TEST(OptimizerTest, StepsBelowAUnitOfBF16CountOnAverage) {
  constexpr std::int64_t kSize = 1000;
  for (const char* name : {"adamw", "adamw_8bit", "sgd", "lion"}) {
    const Optimizer optimizer(Config(name));
    const std::int64_t size = std::string(name) == "adamw_8bit" ? 5 * kSize : kSize;
    TensorBuffer value(ElementType::kBF16, size), grad(ElementType::kBF16, size);
    auto* values = static_cast<kernels::BF16*>(value.ref().data);
    std::fill_n(values, size, kernels::ToBF16(1.0f));
    std::fill_n(static_cast<kernels::BF16*>(grad.ref().data), size, kernels::ToBF16(-1.0f));
    Moments moments = optimizer.MakeMoments(size);
    ASSERT_TRUE(optimizer.Check("a", value.ref(), grad.ref(), moments).ok());
    // Each step adds lr (with sgd: 1, 1.9 and 2.71 times lr). A unit of bf16 above 1 is 2^-7.
    const double lr = 0x1p-12;
    const double added = (std::string(name) == "sgd" ? 1 + 1.9 + 2.71 : 3) * lr;
    for (int step = 1; step <= 3; ++step) {
      ASSERT_TRUE(optimizer.Step(step, lr, value.ref(), grad.ref(), moments, {}, {.seed = 5, .tensor = 1}).ok());
    }
    double mean = 0;
    for (std::int64_t i = 0; i < size; ++i) mean += kernels::ToFloat(values[i]) / static_cast<double>(size);
    const double p = added / 0x1p-7;
    EXPECT_NEAR(mean, 1 + added, 4 * 0x1p-7 * std::sqrt(p * (1 - p) / static_cast<double>(size))) << name;
  }
}

TEST(OptimizerTest, RoundingDependsOnSeedTensorAndStepAlone) {
  const Optimizer optimizer(Config("sgd"));
  kernels::ThreadPool pool(3);
  const auto stepped = [&](const StoreDraws& draws, int step, kernels::ThreadPool* threads = nullptr) {
    constexpr std::int64_t kSize = 200'000;
    TensorBuffer value(ElementType::kBF16, kSize), grad(ElementType::kBF16, kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      static_cast<kernels::BF16*>(value.ref().data)[i] = kernels::ToBF16(static_cast<float>(std::cos(i)));
      static_cast<kernels::BF16*>(grad.ref().data)[i] = kernels::ToBF16(static_cast<float>(std::sin(i)));
    }
    Moments moments = optimizer.MakeMoments(kSize);
    EXPECT_TRUE(optimizer.Step(step, 1e-3, value.ref(), grad.ref(), moments, {.pool = threads}, draws).ok());
    return std::vector<std::byte>(value.ref().bytes().begin(), value.ref().bytes().end());
  };
  const auto want = stepped({1, 2}, 1);
  EXPECT_EQ(stepped({1, 2}, 1, &pool), want);
  EXPECT_NE(stepped({2, 2}, 1), want);
  EXPECT_NE(stepped({1, 3}, 1), want);
  EXPECT_NE(stepped({1, 2}, 2), want);
}

}  // namespace
}  // namespace nibble::trainer
