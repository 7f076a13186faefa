#include "kernels/ops/matmul/matmul_ternary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/int8.h"
#include "tests/support/isas.h"
#include "tests/support/put_rows.h"
#include "tests/support/ternary.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

struct Case {
  std::int64_t rows, n, k;
  bool wide;
  std::vector<std::int16_t> x;  // row-major, no padding
  std::vector<std::int8_t> w;
  std::vector<float> x_scale, w_scale, bias;
  std::vector<std::int32_t> count, index;
  std::vector<float> value;
};

// Row r has r % (max_outliers + 1) outliers; their own codes are 0.
Case MakeCase(std::uint64_t seed, std::int64_t rows, std::int64_t n, std::int64_t k, bool wide, int max_outliers) {
  Case c{rows, n,  k, wide, {}, support::TernaryVector(seed, n * k), {}, {}, support::NormalVector(seed + 2, n),
         {},   {}, {}};
  const std::int64_t top = wide ? 32767 : 127;
  for (std::int64_t i = 0; i < rows * k; ++i) {
    c.x.push_back(
        static_cast<std::int16_t>(support::UniformInt(seed + 1, static_cast<std::uint64_t>(i), 2 * top + 1) - top));
  }
  for (std::int64_t r = 0; r < rows; ++r)
    c.x_scale.push_back(0.001f + support::Uniform(seed + 3, static_cast<std::uint64_t>(r)));
  for (std::int64_t i = 0; i < n; ++i)
    c.w_scale.push_back(0.001f + support::Uniform(seed + 4, static_cast<std::uint64_t>(i)));
  c.index.resize(static_cast<std::size_t>(rows * kMaxOutliers));
  c.value.resize(static_cast<std::size_t>(rows * kMaxOutliers));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t count = std::min<std::int64_t>(r % (max_outliers + 1), k);
    c.count.push_back(static_cast<std::int32_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t j = i * k / count + (k / count - 1) * (i % 2);
      const auto at = static_cast<std::size_t>(r * kMaxOutliers + i);
      c.index[at] = static_cast<std::int32_t>(j);
      c.value[at] = 1000.0f * support::Normal(seed + 5, at);
      c.x[static_cast<std::size_t>(r * k + j)] = 0;
    }
  }
  return c;
}

// int64 sums and the epilogue of docs/numerics.md, from the unpacked codes.
std::vector<float> Oracle(const Case& c, bool bias, bool outliers) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      std::int64_t acc = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        acc += std::int64_t{c.x[static_cast<std::size_t>(r * c.k + k)]} * c.w[static_cast<std::size_t>(n * c.k + k)];
      }
      const float s_col = c.w_scale[static_cast<std::size_t>(n)];
      float v = static_cast<float>(acc);
      v = v * c.x_scale[static_cast<std::size_t>(r)];
      v = v * s_col;
      if (const std::int32_t count = c.count[static_cast<std::size_t>(r)]; outliers && count > 0) {
        float o = 0.0f;
        for (std::int32_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(r * kMaxOutliers + i);
          o = std::fma(c.value[at], static_cast<float>(c.w[static_cast<std::size_t>(n * c.k + c.index[at])]), o);
        }
        v = v + o * s_col;
      }
      if (bias) v = v + c.bias[static_cast<std::size_t>(n)];
      y.push_back(v);
    }
  }
  return y;
}

void ExpectBits(Case& c, const std::vector<float>& oracle, bool bias, bool outliers, DType out, const Stream& stream) {
  const support::TernaryWeight w(c.w, c.w_scale, c.n, c.k);
  ASSERT_TRUE(w.ok);
  const std::int64_t stride = RoundUp(c.k, 64) + 64;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(c.rows * stride));
  std::vector<std::int16_t> wide(static_cast<std::size_t>(c.wide ? c.rows * stride : 0));
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t k = 0; k < c.k; ++k) {
      const std::int16_t code = c.x[static_cast<std::size_t>(r * c.k + k)];
      if (c.wide) wide[static_cast<std::size_t>(r * stride + k)] = code;
      codes[static_cast<std::size_t>(r * stride + k)] = static_cast<std::int8_t>(code);
    }
  }
  const QuantizedRows x{c.wide ? nullptr : codes.data(),
                        c.x_scale.data(),
                        outliers ? c.count.data() : nullptr,
                        c.index.data(),
                        c.value.data(),
                        c.rows,
                        c.k,
                        stride,
                        c.wide ? wide.data() : nullptr};
  const std::int64_t y_stride = c.n + 3;
  GuardedBytes y(c.rows * y_stride * SizeOf(out)), want(c.rows * y_stride * SizeOf(out));  // gaps keep their fill
  const Matrix ym{y.data(), out, c.rows, c.n, y_stride};
  ASSERT_TRUE(MatmulTernary({x, w.view(), bias ? c.bias.data() : nullptr, ym}, stream).ok());
  support::PutRows(oracle, out, c.rows, c.n, y_stride, want.data());
  EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size()))
      << Name(stream.isa) << " M " << c.rows << " N " << c.n << " K " << c.k << " bias " << bias << " " << Name(out)
      << (c.wide ? " wide" : "");
  EXPECT_TRUE(y.GuardsIntact());
}

TEST(MatmulTernaryTest, EveryPathAndThreadCountGivesTheOraclesBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  const std::int64_t shapes[][3] = {
      {1, 1, 1},    {7, 13, 7},   {13, 7, 13},  {0, 5, 9},    {1, 15, 63},  {2, 16, 64},    {3, 17, 65}, {4, 33, 576},
      {5, 64, 100}, {6, 65, 128}, {8, 80, 255}, {13, 80, 63}, {97, 49, 68}, {1, 200, 1536}, {3, 17, 0},  {20, 5, 0}};
  for (const auto& [rows, n, k] : shapes) {
    for (const bool wide : {false, true}) {
      for (const int max_outliers : {0, 16}) {
        Case c = MakeCase(static_cast<std::uint64_t>(rows * 1000 + n), rows, n, k, wide, max_outliers);
        for (const bool bias : {false, true}) {
          const std::vector<float> oracle = Oracle(c, bias, max_outliers > 0);
          for (const Isa isa : support::Isas()) {
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
              ExpectBits(c, oracle, bias, max_outliers > 0, DType::kF32, CpuStream(isa, pool));
              ExpectBits(c, oracle, bias, max_outliers > 0, DType::kBF16, CpuStream(isa, pool));
            }
          }
        }
      }
    }
  }
}

// All +1 by all 127 overflows 16-bit sums that are widened too late (docs/numerics.md 3), as in bitnet.cpp's AVX2 path.
// Our quantizer never makes the code -128, but this code must not break the sums either.
TEST(MatmulTernaryTest, ExtremesAreExact) {
  for (const std::int64_t k : {std::int64_t{64}, std::int64_t{2048}, std::int64_t{4096}, kTernaryMaxCols}) {
    Case c = MakeCase(1, 6, 20, k, /*wide=*/false, /*max_outliers=*/0);
    std::fill(c.w.begin(), c.w.end(), std::int8_t{1});
    std::fill(c.w.begin(), c.w.begin() + 3 * k, std::int8_t{-1});
    std::fill(c.w.begin() + 3 * k, c.w.begin() + 5 * k, std::int8_t{0});
    const std::int16_t fill[] = {127, -127, -128, 0, 64, 1};
    for (std::int64_t r = 0; r < 6; ++r) std::fill_n(c.x.begin() + r * k, k, fill[r]);
    const std::vector<float> oracle = Oracle(c, /*bias=*/false, /*outliers=*/false);
    for (const Isa isa : support::Isas())
      ExpectBits(c, oracle, /*bias=*/false, /*outliers=*/false, DType::kF32, CpuStream(isa));
  }
  for (const std::int64_t k : {std::int64_t{65}, std::int64_t{2048}, kTernaryMaxColsWide}) {
    Case c = MakeCase(1, 4, 20, k, /*wide=*/true, /*max_outliers=*/0);
    std::fill(c.w.begin(), c.w.end(), std::int8_t{1});
    std::fill(c.w.begin(), c.w.begin() + 3 * k, std::int8_t{-1});
    const std::int16_t fill[] = {32767, -32767, 255, 0};
    for (std::int64_t r = 0; r < 4; ++r) std::fill_n(c.x.begin() + r * k, k, fill[r]);
    const std::vector<float> oracle = Oracle(c, /*bias=*/false, /*outliers=*/false);
    for (const Isa isa : support::Isas())
      ExpectBits(c, oracle, /*bias=*/false, /*outliers=*/false, DType::kF32, CpuStream(isa));
  }
}

TEST(MatmulTernaryTest, RowDoesNotDependOnItsNeighbours) {
  Case c = MakeCase(8, 30, 70, 200, /*wide=*/false, /*max_outliers=*/0);
  const std::vector<float> all = Oracle(c, /*bias=*/true, /*outliers=*/false);
  for (const Isa isa : support::Isas()) {
    for (std::int64_t rows = 1; rows <= 30; ++rows) {
      Case some = c;
      some.rows = rows;
      ExpectBits(some, all, /*bias=*/true, /*outliers=*/false, DType::kF32, CpuStream(isa));
    }
  }
}

// q, k and v side by side in one weight give the same results as each alone, because every row has its own scale.
TEST(MatmulTernaryTest, ConcatenatedWeightsGiveTheBitsOfEach) {
  Case c = MakeCase(9, 3, 96, 128, /*wide=*/false, /*max_outliers=*/0);
  for (std::size_t n = 0; n < 96; ++n) c.w_scale[n] = n < 32 ? 0.5f : n < 80 ? 0.003f : 7.0f;
  const std::vector<float> all = Oracle(c, /*bias=*/false, /*outliers=*/false);
  for (const Isa isa : support::Isas()) {
    for (const auto& [begin, end] : {std::pair{0, 32}, std::pair{32, 80}, std::pair{80, 96}}) {
      Case part = c;
      part.n = end - begin;
      part.w.assign(c.w.begin() + begin * 128, c.w.begin() + end * 128);
      part.w_scale.assign(c.w_scale.begin() + begin, c.w_scale.begin() + end);
      std::vector<float> want;
      for (std::int64_t r = 0; r < 3; ++r)
        want.insert(want.end(), all.begin() + r * 96 + begin, all.begin() + r * 96 + end);
      ExpectBits(part, want, /*bias=*/false, /*outliers=*/false, DType::kF32, CpuStream(isa));
    }
    ExpectBits(c, all, /*bias=*/false, /*outliers=*/false, DType::kF32, CpuStream(isa));
  }
}

TEST(MatmulTernaryTest, RejectsBadArguments) {
  Case c = MakeCase(8, 2, 17, 65, /*wide=*/false, /*max_outliers=*/0);
  const support::TernaryWeight w(c.w, c.w_scale, c.n, c.k);
  support::Int8Rows x(2, 65);
  std::vector<float> y(34);
  const Matrix ym = MakeMatrix(y.data(), DType::kF32, 2, 17);
  const Stream stream = CpuStream(Isa::kPlain);
  const auto code = [&](QuantizedRows rows, PackedTernaryWeight weight, Matrix out) {
    return MatmulTernary({rows, weight, nullptr, out}, stream).code();
  };
  PackedTernaryWeight bad = w.view();
  bad.padded_k = 80;
  EXPECT_EQ(code(x.view(), bad, ym), absl::StatusCode::kInvalidArgument);
  bad = w.view();
  bad.tiles = nullptr;
  EXPECT_EQ(code(x.view(), bad, ym), absl::StatusCode::kInvalidArgument);
  bad = w.view();
  bad.scale = nullptr;
  EXPECT_EQ(code(x.view(), bad, ym), absl::StatusCode::kInvalidArgument);
  bad = w.view();
  bad.cols = kTernaryMaxCols + 1;
  bad.padded_k = TernaryPaddedK(bad.cols);
  EXPECT_EQ(code(x.view(), bad, ym), absl::StatusCode::kInvalidArgument);
  support::Int8Rows short_rows(2, 64);
  QuantizedRows rows = short_rows.view();
  EXPECT_EQ(code(rows, w.view(), ym), absl::StatusCode::kInvalidArgument);
  rows = x.view();
  rows.codes = nullptr;
  EXPECT_EQ(code(rows, w.view(), ym), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(x.view(), w.view(), MakeMatrix(y.data(), DType::kF32, 2, 16)), absl::StatusCode::kInvalidArgument);
  // 16-bit codes have a smaller limit on K: the sums must stay below 2^31.
  support::WideRows wide(1, 1);
  rows = wide.view();
  rows.cols = kTernaryMaxColsWide + 1;
  rows.stride = TernaryPaddedK(rows.cols);
  bad = w.view();
  bad.cols = rows.cols;
  bad.padded_k = rows.stride;
  EXPECT_EQ(code(rows, bad, MakeMatrix(y.data(), DType::kF32, 1, 17)), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
