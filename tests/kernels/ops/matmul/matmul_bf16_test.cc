#include "kernels/ops/matmul/matmul_bf16.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;
using support::Isas;

// x and w in buffers of exactly their size, and the f64 product with a bound for any order of summation.
struct Case {
  Case(std::int64_t m, std::int64_t n, std::int64_t k, DType y_type) : m(m), n(n), k(k), y_type(y_type) {
    const auto seed = static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k);
    x = support::ToBytes(support::NormalVector(seed, m * k), DType::kBF16);
    w = support::ToBytes(support::NormalVector(seed + 1, n * k), DType::kBF16);
    const ConstMatrix xm = X(), wm = W();
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0, abs = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const double term =
              static_cast<double>(ToFloat(xm.Row<BF16>(i)[l])) * static_cast<double>(ToFloat(wm.Row<BF16>(j)[l]));
          sum += term;
          abs += std::fabs(term);
        }
        want.push_back(sum);
        bound.push_back(support::DotBound(k, abs, y_type));
      }
    }
  }

  ConstMatrix X() const { return MakeConstMatrix(x.data(), DType::kBF16, m, k); }
  ConstMatrix W() const { return MakeConstMatrix(w.data(), DType::kBF16, n, k); }

  void Check(const Stream& stream) const {
    GuardedBytes y(m * n * SizeOf(y_type));
    ASSERT_TRUE(MatmulBf16({.x = X(), .w = W(), .y = MakeMatrix(y.data(), y_type, m, n)}, stream).ok());
    EXPECT_TRUE(y.GuardsIntact());
    std::vector<float> got(want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      got[i] = y_type == DType::kF32 ? y.As<float>()[i] : ToFloat(y.As<BF16>()[i]);
    }
    EXPECT_TRUE(support::AllWithin(got, want, [&](std::size_t i) { return bound[i]; }))
        << Name(stream.isa) << " " << m << "x" << n << "x" << k << " to " << Name(y_type);
  }

  std::int64_t m, n, k;
  DType y_type;
  std::vector<std::uint8_t> x, w;
  std::vector<double> want, bound;
};

TEST(MatmulBf16Test, EveryPathIsWithinTheBoundOfTheExactProduct) {
  for (const DType y_type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t m : {0, 1, 5, 7, 13, 33}) {
      for (const std::int64_t n : {0, 1, 13, 16, 33, 64, 100}) {
        for (const std::int64_t k : {0, 1, 13, 31, 32, 33, 64, 65, 200}) {
          const Case c(m, n, k, y_type);
          for (const Isa isa : Isas()) c.Check(CpuStream(isa));
        }
      }
    }
  }
}

// From K = 1025 on, the fast path takes K in several chunks and keeps the sums in memory between them.
TEST(MatmulBf16Test, LongRowsAreWithinTheBoundToo) {
  for (const std::int64_t k : {1023, 1024, 1025, 2111}) {
    const Case c(29, 71, k, DType::kF32);
    for (const Isa isa : Isas()) c.Check(CpuStream(isa));
  }
}

TEST(MatmulBf16Test, NeitherThreadsNorOtherRowsChangeBits) {
  for (const std::int64_t n : {33, 210}) {
    const Case c(14, n, 1100, DType::kF32);
    for (const Isa isa : Isas()) {
      std::vector<float> want(static_cast<std::size_t>(c.m * n));
      ASSERT_TRUE(
          MatmulBf16({.x = c.X(), .w = c.W(), .y = MakeMatrix(want.data(), DType::kF32, c.m, n)}, CpuStream(isa)).ok());
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        std::vector<float> got(want.size());
        ASSERT_TRUE(MatmulBf16({.x = c.X(), .w = c.W(), .y = MakeMatrix(got.data(), DType::kF32, c.m, n)},
                               CpuStream(isa, &pool))
                        .ok());
        EXPECT_TRUE(support::BytesEqual(got.data(), want.data(), want.size() * 4)) << Name(isa) << " " << threads;
      }
      std::vector<float> one(static_cast<std::size_t>(n));
      const ConstMatrix last = MakeConstMatrix(c.X().Row<BF16>(13), DType::kBF16, 1, c.k);
      ASSERT_TRUE(
          MatmulBf16({.x = last, .w = c.W(), .y = MakeMatrix(one.data(), DType::kF32, 1, n)}, CpuStream(isa)).ok());
      EXPECT_TRUE(support::BytesEqual(one.data(), want.data() + 13 * n, one.size() * 4)) << Name(isa);
    }
  }
}

TEST(MatmulBf16Test, ReadsStridedRows) {
  const Case c(9, 20, 96, DType::kF32);
  // Every second row of x and of w.
  const ConstMatrix x = {c.x.data(), DType::kBF16, 4, 96, 192}, w = {c.w.data(), DType::kBF16, 10, 96, 192};
  for (const Isa isa : Isas()) {
    std::vector<float> y(40);
    ASSERT_TRUE(MatmulBf16({.x = x, .w = w, .y = MakeMatrix(y.data(), DType::kF32, 4, 10)}, CpuStream(isa)).ok());
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 10; ++j) {
        const std::size_t at = 2 * i * 20 + 2 * j;
        EXPECT_NEAR(y[i * 10 + j], c.want[at], c.bound[at]) << Name(isa);
      }
    }
  }
}

TEST(MatmulBf16Test, RejectsBadArguments) {
  const Case c(2, 4, 64, DType::kF32);
  std::vector<float> y(8);
  const auto code = [&](auto change) {
    MatmulBf16Args args = {.x = c.X(), .w = c.W(), .y = MakeMatrix(y.data(), DType::kF32, 2, 4)};
    change(args);
    return MatmulBf16(args, CpuStream(Isa::kPlain)).code();
  };
  using A = MatmulBf16Args;
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](A&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](A& a) { a.x.cols = 63; }), bad);
  EXPECT_EQ(code([](A& a) { a.x.dtype = DType::kF32; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.dtype = DType::kF32; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.data = nullptr; }), bad);
  EXPECT_EQ(code([](A& a) { a.y.cols = 5; }), bad);
  EXPECT_EQ(code([](A& a) { a.y.dtype = DType::kI32; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.rows = -1; }), bad);
}

}  // namespace
}  // namespace nibble::kernels
