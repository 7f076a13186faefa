#include "kernels/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/numeric.h"

namespace nibble::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Tries floats from `first` to `last`, of one sign: the bits of a float ascend with its magnitude. `stride` is the step
// between the bits of two floats, read as integers.
void ExpectExpWithinUlps(float first, float last, std::uint32_t stride, std::int64_t ulps) {
  const std::uint32_t lowest = std::bit_cast<std::uint32_t>(first);
  const std::uint32_t highest = std::bit_cast<std::uint32_t>(last);
  std::int64_t worst = 0;
  float worst_x = 0;
  for (std::uint64_t bits = lowest; bits <= highest; bits += stride) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const float want = static_cast<float>(std::exp(static_cast<double>(x)));
    const std::int64_t distance = support::UlpDistance(Exp(x), want);
    if (distance > worst) {
      worst = distance;
      worst_x = x;
    }
  }
  EXPECT_LE(worst, ulps) << "at " << worst_x;
}

TEST(MathTest, ExpIsWithinOneUlpOverItsWholeRange) {
  ExpectExpWithinUlps(0.0f, 89.0f, 9973, 1);
  ExpectExpWithinUlps(-0.0f, -105.0f, 9973, 1);
  ExpectExpWithinUlps(80.0f, 89.0f, 101, 1);
  ExpectExpWithinUlps(-86.0f, -105.0f, 101, 1);  // gradual underflow
}

TEST(MathTest, ExpIsRightAtTheEndsOfItsRange) {
  EXPECT_EQ(Exp(-kInf), 0.0f);
  EXPECT_EQ(Exp(-104.5f), 0.0f);
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_EQ(Exp(88.8f), kInf);
  EXPECT_EQ(Exp(1e38f), kInf);
  EXPECT_TRUE(std::isfinite(Exp(88.72f)));
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(MathTest, LogIsWithinOneUlp) {
  for (std::uint32_t bits = 1; bits < 0x7f800000u; bits += 19997) {
    const float x = std::bit_cast<float>(bits);
    const double want = std::log(static_cast<double>(x));
    // 2^-24 of the value is at least half an ulp and at most one. 1e-11 covers the error of the f64 computation.
    const double error = std::fabs(static_cast<double>(Log(x)) - want);
    ASSERT_LE(error, std::fabs(want) * (0x1p-24 + 1e-11)) << x;
  }
  EXPECT_EQ(Log(1.0f), 0.0f);
  EXPECT_EQ(Log(0.0f), -kInf);
  EXPECT_EQ(Log(kInf), kInf);
  EXPECT_TRUE(std::isnan(Log(-1.0f)));
  EXPECT_TRUE(std::isnan(Log(std::numeric_limits<float>::quiet_NaN())));
}

TEST(MathTest, SinCosErrorsAreBelowTwoUlpsOfOneUpToAMillionRadians) {
  for (int i = 0; i < 200000; ++i) {
    const double x = static_cast<double>(static_cast<float>(i) * 5.2345f);  // up to about a million radians
    double s = 0;
    double c = 0;
    SinCos(x, &s, &c);
    ASSERT_NEAR(s, std::sin(x), 4e-16) << x;
    ASSERT_NEAR(c, std::cos(x), 4e-16) << x;
  }
}

}  // namespace
}  // namespace nibble::kernels
