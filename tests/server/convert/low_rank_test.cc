#include "server/convert/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/thread_pool.h"
#include "server/convert/jacobi.h"
#include "tests/support/cancel_at.h"
#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::convert {
namespace {

using kernels::ConstMatrix;
using kernels::DType;

struct Case {
  const char* name;
  std::int64_t rows, cols, rank, rank_of_weight;
};

// As in make_low_rank_golden.py.
constexpr Case kCases[] = {
    {"wide", 24, 40, 5, 24},     {"tall", 50, 17, 17, 17},    {"square", 33, 33, 1, 33},           {"one", 1, 5, 1, 1},
    {"deficient", 20, 30, 8, 3}, {"large", 140, 150, 4, 140}, {"large_deficient", 200, 150, 12, 6}};

// The formula of weight() in make_low_rank_golden.py.
std::vector<float> Weight(const Case& shape) {
  std::vector<float> w;
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      double value = 0;
      if (shape.rank_of_weight == std::min(shape.rows, shape.cols)) {
        value = static_cast<double>((i * 37 + j * 101 + i * j * 7) % 97 - 48) * 0x1p-10 +
                1.0 / static_cast<double>(i + j + 1);
      } else {
        for (std::int64_t t = 0; t < shape.rank_of_weight; ++t) {
          value += static_cast<double>(((i * 5 + t * 11 + i * t) % 7 - 3) * ((t * 3 + j * 13 + t * j * 2) % 9 - 4));
        }
        value *= 0x1p-8;
      }
      w.push_back(static_cast<float>(value));
    }
  }
  return w;
}

ConstMatrix View(const std::vector<float>& w, std::int64_t rows, std::int64_t cols) {
  return kernels::MakeConstMatrix(w.data(), DType::kF32, rows, cols);
}

// Element (r, c) of b a, in f64.
double Element(const LowRank& made, std::int64_t r, std::int64_t c, std::int64_t rank, std::int64_t cols) {
  double sum = 0;
  for (std::int64_t t = 0; t < rank; ++t) {
    sum += static_cast<double>(made.b[static_cast<std::size_t>(r * rank + t)]) *
           static_cast<double>(made.a[static_cast<std::size_t>(t * cols + c)]);
  }
  return sum;
}

class LowRankTest : public ::testing::TestWithParam<Case> {};

TEST_P(LowRankTest, AgreesWithTheDecompositionOfNumpy) {
  const Case& shape = GetParam();
  const support::Golden golden("tests/golden/convert/low_rank.txt");
  const auto values = golden.Get<double>(std::string(shape.name) + ".values");
  const auto u = golden.Get<float>(std::string(shape.name) + ".u");
  const auto vt = golden.Get<float>(std::string(shape.name) + ".vt");
  ASSERT_EQ(values.size(), static_cast<std::size_t>(shape.rank));
  const std::vector<float> w = Weight(shape);
  const auto made = LargestParts(View(w, shape.rows, shape.cols), shape.rank, kernels::Stream(), {});
  ASSERT_TRUE(made.ok()) << made.status();
  double worst = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t c = 0; c < shape.cols; ++c) {
      double want = 0;
      for (std::int64_t t = 0; t < shape.rank; ++t) {
        want += static_cast<double>(u[static_cast<std::size_t>(r * shape.rank + t)]) *
                values[static_cast<std::size_t>(t)] *
                static_cast<double>(vt[static_cast<std::size_t>(t * shape.cols + c)]);
      }
      worst = std::max(worst, std::fabs(Element(*made, r, c, shape.rank, shape.cols) - want));
    }
  }
  RecordProperty("worst_of_largest_value", std::to_string(worst / values[0]));
  EXPECT_LE(worst, 2e-6 * values[0]);
  // Row t of a and column t of b share the value: each has the norm sqrt(value).
  for (std::int64_t t = 0; t < shape.rank; ++t) {
    double a = 0, b = 0;
    for (std::int64_t c = 0; c < shape.cols; ++c)
      a += std::pow(made->a[static_cast<std::size_t>(t * shape.cols + c)], 2);
    for (std::int64_t r = 0; r < shape.rows; ++r)
      b += std::pow(made->b[static_cast<std::size_t>(r * shape.rank + t)], 2);
    EXPECT_NEAR(a, values[static_cast<std::size_t>(t)], 2e-6 * values[0]) << t;
    EXPECT_NEAR(b, values[static_cast<std::size_t>(t)], 2e-6 * values[0]) << t;
  }
}

TEST_P(LowRankTest, BitsDependNeitherOnThreadsNorOnTheInstructionSet) {
  const Case& shape = GetParam();
  const std::vector<float> w = Weight(shape);
  const auto want = LargestParts(View(w, shape.rows, shape.cols), shape.rank, kernels::Stream(), {});
  ASSERT_TRUE(want.ok()) << want.status();
  for (const kernels::Isa isa : support::Isas()) {
    for (const int threads : {1, 2, 5}) {
      kernels::ThreadPool pool(threads);
      const auto got = LargestParts(View(w, shape.rows, shape.cols), shape.rank, support::CpuStream(isa, &pool), {});
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(got->a, want->a) << kernels::Name(isa) << ", " << threads << " threads";
      EXPECT_EQ(got->b, want->b) << kernels::Name(isa) << ", " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LowRankTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Sum of the squares of the first `rank` singular values.
double SquaresOf(const SmallSvd& svd, std::int64_t rank) {
  double sum = 0;
  for (std::int64_t t = 0; t < rank; ++t) sum += std::pow(svd.values[static_cast<std::size_t>(t)], 2);
  return sum;
}

TEST(LargestPartsTest, RandomMatrixLosesLessThanOnePercentOfTheBestApproximation) {
  constexpr std::int64_t kSize = 320, kRank = 8;
  const std::vector<float> w = support::NormalVector(1, kSize * kSize);
  const auto exact = DecomposeSmall(std::vector<double>(w.begin(), w.end()), kSize, kernels::Stream(), {});
  ASSERT_TRUE(exact.ok()) << exact.status();
  const auto made = LargestParts(View(w, kSize, kSize), kRank, kernels::Stream(), {});
  ASSERT_TRUE(made.ok()) << made.status();
  double all = 0, left = 0;
  for (std::int64_t r = 0; r < kSize; ++r) {
    for (std::int64_t c = 0; c < kSize; ++c) {
      const auto value = static_cast<double>(w[static_cast<std::size_t>(r * kSize + c)]);
      all += value * value;
      left += std::pow(value - Element(*made, r, c, kRank, kSize), 2);
    }
  }
  const double best = SquaresOf(*exact, kRank);
  RecordProperty("share_of_the_best", std::to_string((all - left) / best));
  EXPECT_LE(all - left, best * (1 + 1e-6));
  EXPECT_GE(all - left, 0.99 * best);
}

TEST(LargestPartsTest, ZeroWeightHasZeroParts) {
  for (const std::int64_t size : {3, 200}) {
    const std::vector<float> w(static_cast<std::size_t>(size * size));
    const auto made = LargestParts(View(w, size, size), 2, kernels::Stream(), {});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->a, std::vector<float>(static_cast<std::size_t>(2 * size)));
    EXPECT_EQ(made->b, std::vector<float>(static_cast<std::size_t>(2 * size)));
  }
}

TEST(LargestPartsTest, RefusesWeightsWhoseSumsAreNotFinite) {
  const std::vector<float> w(64, 3e38f);
  const auto made = LargestParts(View(w, 8, 8), 2, kernels::Stream(), {});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << made.status();
}

TEST(LargestPartsTest, CancellationStopsTheWork) {
  const std::vector<float> w = support::NormalVector(2, 150 * 150);
  support::CancelAt cancel;
  ASSERT_TRUE(LargestParts(View(w, 150, 150), 4, kernels::Stream(), cancel.callback()).ok());
  const int calls = cancel.calls();
  for (int at = 1; at <= calls; at += 37) {  // a sample: every check would take too long
    cancel.Restart(at);
    const auto made = LargestParts(View(w, 150, 150), 4, kernels::Stream(), cancel.callback());
    EXPECT_TRUE(absl::IsCancelled(made.status())) << at << ": " << made.status();
    EXPECT_EQ(cancel.calls(), at);
  }
}

TEST(DecomposeSmallTest, RestoresTheMatrixFromOrthonormalVectors) {
  for (const std::int64_t n : {1, 2, 5, 16, 33}) {
    const std::vector<float> values = support::NormalVector(static_cast<std::uint64_t>(n), n * n);
    const std::vector<double> m(values.begin(), values.end());
    const auto svd = DecomposeSmall(m, n, kernels::Stream(), {});
    ASSERT_TRUE(svd.ok()) << svd.status();
    const auto at = [&](const std::vector<double>& matrix, std::int64_t r, std::int64_t c) {
      return matrix[static_cast<std::size_t>(r * n + c)];
    };
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double restored = 0, lefts = 0, rights = 0;
        for (std::int64_t k = 0; k < n; ++k) {
          restored += at(svd->left, k, i) * at(svd->scaled, k, j);
          lefts += at(svd->left, i, k) * at(svd->left, j, k);
          rights += at(svd->scaled, i, k) * at(svd->scaled, j, k);
        }
        EXPECT_NEAR(restored, at(m, i, j), 1e-13 * static_cast<double>(n)) << n;
        EXPECT_NEAR(lefts, i == j ? 1.0 : 0.0, 1e-13 * static_cast<double>(n)) << n;
        const double value = svd->values[static_cast<std::size_t>(i)];
        EXPECT_NEAR(rights, i == j ? value * value : 0.0, 1e-12 * static_cast<double>(n)) << n;
      }
    }
    EXPECT_TRUE(std::is_sorted(svd->values.rbegin(), svd->values.rend()));
  }
}

}  // namespace
}  // namespace nibble::convert
