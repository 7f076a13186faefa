#include "kernels/stochastic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/ops/quantize/quantize_int8.h"
#include "tests/support/golden.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;

constexpr StochasticRounding kHow = {.enabled = true, .seed = 42, .stream = 1};

// How many of n draws round v up.
std::int64_t RoundedUp(float v, std::int64_t n) {
  std::int64_t up = 0;
  for (std::int64_t i = 0; i < n; ++i) up += RoundAt(kHow, i / 1000, i % 1000, v) > std::floor(v);
  return up;
}

TEST(StochasticRoundingTest, IntegersNeverMove) {
  for (const float v : {0.0f, -0.0f, 1.0f, 5.0f, -5.0f, 126.0f, -127.0f, 127.0f}) {
    for (std::int64_t i = 0; i < 1'000'000; ++i) ASSERT_EQ(RoundAt(kHow, i / 1000, i % 1000, v), v) << i;
  }
}

TEST(StochasticRoundingTest, FractionIsTheProbabilityOfRoundingUp) {
  constexpr std::int64_t kDraws = 1'000'000;
  for (const float v : {0.8f, -0.2f, 100.8f, 0.5f, 0.01f, -126.25f}) {
    const double p = static_cast<double>(v) - std::floor(static_cast<double>(v));
    const double sigma = std::sqrt(p * (1 - p) * static_cast<double>(kDraws));
    EXPECT_NEAR(static_cast<double>(RoundedUp(v, kDraws)), p * static_cast<double>(kDraws), 4 * sigma) << v;
  }
}

TEST(StochasticRoundingTest, BF16RoundsToItsTwoNeighbours) {
  std::uint16_t bits[kDrawsPerBlock];
  for (const float x : {1.001f, -1.001f, 3e-40f, 3.3e38f, 0.0f, -0.0f, 1.0f}) {
    const float toward_zero = ToFloat(ToBF16Stochastically(x, 0));
    const float away = ToFloat(ToBF16Stochastically(x, 0xffff));
    EXPECT_LE(std::fabs(toward_zero), std::fabs(x));
    EXPECT_GE(std::fabs(away), std::fabs(x));
    const double unit = std::fabs(static_cast<double>(away) - toward_zero);
    const double p = unit == 0 ? 0 : std::fabs(static_cast<double>(x) - toward_zero) / unit;
    constexpr int kBlocks = 20'000;
    std::int64_t up = 0;
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      StochasticBits(3, block, 1, bits);
      for (const std::uint16_t draw : bits) {
        const float rounded = ToFloat(ToBF16Stochastically(x, draw));
        ASSERT_TRUE(rounded == toward_zero || rounded == away) << x;
        up += rounded == away && unit != 0;
      }
    }
    constexpr double kDraws = kBlocks * kDrawsPerBlock;
    EXPECT_NEAR(static_cast<double>(up), p * kDraws, 4 * std::sqrt(p * (1 - p) * kDraws) + 1e-9) << x;
  }
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16Stochastically(NAN, 0xffff))));
  EXPECT_EQ(ToFloat(ToBF16Stochastically(INFINITY, 0xffff)), INFINITY);
}

TEST(StochasticRoundingTest, DrawsOfElementsDiffer) {
  float first[8], other[8];
  StochasticDraws({.enabled = true, .seed = 1, .stream = 1}, /*row=*/0, /*block=*/0, first);
  // Each case changes one of seed, stream, row and block.
  for (const auto& [how, row, block] : std::vector<std::tuple<StochasticRounding, std::int64_t, std::int64_t>>{
           {{true, 2, 1}, 0, 0}, {{true, 1, 2}, 0, 0}, {{true, 1, 1}, 1, 0}, {{true, 1, 1}, 0, 1}}) {
    StochasticDraws(how, row, block, other);
    EXPECT_NE(std::vector<float>(first, first + 8), std::vector<float>(other, other + 8));
  }
  EXPECT_NE(first[0], first[1]);
}

TEST(StochasticRoundingTest, QuantizeInt8GivesTheGoldenCodes) {
  const support::Golden golden("tests/golden/kernels/stochastic.txt");
  const auto x = golden.Get<float>("x"), scale = golden.Get<float>("scale");
  const auto codes = golden.Get<std::int8_t>("codes");
  QuantizeOptions how;
  how.stochastic = {true, static_cast<std::uint64_t>(golden.Get<std::int64_t>("seed")[0]),
                    static_cast<std::uint64_t>(golden.Get<std::int64_t>("stream")[0])};
  for (const Isa isa : support::Isas()) {
    support::Int8Rows out(6, 45);
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 6, 45), out.view(), 0, how}, CpuStream(isa)).ok());
    EXPECT_TRUE(out.GuardsIntact());
    for (std::int64_t r = 0; r < 6; ++r) {
      EXPECT_EQ(out.view().scale[r], scale[static_cast<std::size_t>(r)]);
      EXPECT_TRUE(support::BytesEqual(out.view().codes + r * 64, &codes[static_cast<std::size_t>(r * 45)], 45))
          << Name(isa) << " row " << r;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
