#include "kernels/ops/matmul/matmul_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/int8.h"
#include "tests/support/isas.h"
#include "tests/support/put_rows.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

struct Case {
  std::int64_t rows, n, k;
  std::vector<std::int8_t> x, w;  // row-major, no padding
  std::vector<float> x_scale, w_scale, bias;
  std::vector<std::int32_t> count, index;
  std::vector<float> value;
};

Case MakeCase(std::uint64_t seed, std::int64_t rows, std::int64_t n, std::int64_t k, int max_outliers) {
  Case c{rows,
         n,
         k,
         support::CodeVector(seed, rows * k),
         support::CodeVector(seed + 1, n * k),
         {},
         {},
         support::NormalVector(seed + 2, n),
         {},
         {},
         {}};
  for (std::int64_t r = 0; r < rows; ++r)
    c.x_scale.push_back(0.001f + support::Uniform(seed + 3, static_cast<std::uint64_t>(r)));
  for (std::int64_t i = 0; i < n; ++i)
    c.w_scale.push_back(0.001f + support::Uniform(seed + 4, static_cast<std::uint64_t>(i)));
  c.index.resize(static_cast<std::size_t>(rows * kMaxOutliers));
  c.value.resize(static_cast<std::size_t>(rows * kMaxOutliers));
  for (std::int64_t r = 0; r < rows; ++r) {
    // Row r has r % (max_outliers + 1) outliers, spread over the row; their own codes are 0.
    const std::int64_t count = std::min<std::int64_t>(r % (max_outliers + 1), k);
    c.count.push_back(static_cast<std::int32_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t j = i * k / count + (k / count - 1) * (i % 2);
      c.index[static_cast<std::size_t>(r * kMaxOutliers + i)] = static_cast<std::int32_t>(j);
      c.value[static_cast<std::size_t>(r * kMaxOutliers + i)] =
          1000.0f * support::Normal(seed + 5, static_cast<std::uint64_t>(r * kMaxOutliers + i));
      c.x[static_cast<std::size_t>(r * k + j)] = 0;
    }
  }
  return c;
}

// int64 sums and the epilogue of docs/numerics.md, from the unpacked codes.
std::vector<float> Oracle(const Case& c, bool bias) {
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
      const std::int32_t count = c.count[static_cast<std::size_t>(r)];
      if (count > 0) {
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

void ExpectOracleBits(Case& c, bool bias, bool outliers, DType out, const Stream& stream) {
  const support::Int8Weight w(c.w, c.w_scale, c.n, c.k);
  const std::int64_t stride = RoundUp(c.k, 64) + 64;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(c.rows * stride));
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::copy_n(c.x.begin() + r * c.k, c.k, codes.begin() + r * stride);
  }
  const QuantizedRows x{
      codes.data(), c.x_scale.data(), outliers ? c.count.data() : nullptr, c.index.data(), c.value.data(), c.rows, c.k,
      stride};
  const std::int64_t y_stride = c.n + 3;
  GuardedBytes y(c.rows * y_stride * SizeOf(out));
  const Matrix ym{y.data(), out, c.rows, c.n, y_stride};
  ASSERT_TRUE(MatmulInt8({x, w.view(), bias ? c.bias.data() : nullptr, ym}, stream).ok());
  GuardedBytes want(c.rows * y_stride * SizeOf(out));  // the gaps between rows keep their fill
  const std::vector<float> oracle = Oracle(c, bias);
  support::PutRows(oracle, out, c.rows, c.n, y_stride, want.data());
  EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size()))
      << Name(stream.isa) << " M " << c.rows << " N " << c.n << " K " << c.k << " bias " << bias << " " << Name(out);
  EXPECT_TRUE(y.GuardsIntact());
}

TEST(MatmulInt8Test, EveryPathAndThreadCountGivesTheOraclesBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  const std::int64_t shapes[][3] = {{1, 1, 1},    {7, 13, 7},     {0, 5, 9},    {1, 15, 63},  {2, 16, 64},
                                    {3, 17, 65},  {4, 33, 576},   {5, 64, 100}, {6, 65, 128}, {13, 80, 63},
                                    {97, 49, 68}, {1, 200, 1536}, {3, 17, 0},   {20, 5, 0}};
  for (const auto& [rows, n, k] : shapes) {
    for (const int max_outliers : {0, 16}) {
      Case c = MakeCase(static_cast<std::uint64_t>(rows * 1000 + n), rows, n, k, max_outliers);
      for (const Isa isa : support::Isas()) {
        for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
          for (const DType out : {DType::kF32, DType::kBF16}) {
            for (const bool bias : {false, true})
              ExpectOracleBits(c, bias, max_outliers > 0, out, CpuStream(isa, pool));
          }
        }
      }
    }
  }
}

TEST(MatmulInt8Test, ExtremesAreExact) {
  // Rows of 127 times rows of -128 give the sum of the largest size. Sums in 16 bits would saturate, and the AVX-512
  // path's sums before its correction can wrap around 32 bits.
  for (const std::int64_t k : {std::int64_t{64}, std::int64_t{2048}, kInt8MaxCols}) {
    Case c = MakeCase(1, 5, 20, k, 0);
    std::fill(c.x.begin(), c.x.end(), std::int8_t{127});
    std::fill(c.w.begin(), c.w.end(), std::int8_t{-128});
    std::fill(c.w.begin(), c.w.begin() + 3 * k, std::int8_t{127});
    std::fill(c.x.begin(), c.x.begin() + k, std::int8_t{-127});
    for (const Isa isa : support::Isas())
      ExpectOracleBits(c, /*bias=*/false, /*outliers=*/false, DType::kF32, CpuStream(isa));
  }
}

TEST(MatmulInt8Test, RowDoesNotDependOnItsNeighbours) {
  Case c = MakeCase(8, 30, 70, 200, 8);
  const std::vector<float> all = Oracle(c, /*bias=*/true);
  for (const Isa isa : support::Isas()) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const auto at = [&](auto& v, std::int64_t width) {
        return std::vector(v.begin() + r * width, v.begin() + (r + 1) * width);
      };
      Case one{1,
               c.n,
               c.k,
               at(c.x, c.k),
               c.w,
               at(c.x_scale, 1),
               c.w_scale,
               c.bias,
               at(c.count, 1),
               at(c.index, kMaxOutliers),
               at(c.value, kMaxOutliers)};
      EXPECT_EQ(Oracle(one, /*bias=*/true), at(all, c.n));
      ExpectOracleBits(one, /*bias=*/true, /*outliers=*/true, DType::kF32, CpuStream(isa));
    }
  }
}

TEST(MatmulInt8Test, RejectsBadArguments) {
  Case c = MakeCase(8, 2, 17, 65, 8);
  const support::Int8Weight w(c.w, c.w_scale, c.n, c.k);
  support::Int8Rows x(2, 65);
  std::vector<float> y(34);
  const Matrix ym = MakeMatrix(y.data(), DType::kF32, 2, 17);
  const Stream stream = CpuStream(Isa::kPlain);
  PackedInt8Weight bad = w.view();
  bad.padded_k = 68;
  EXPECT_EQ(MatmulInt8({x.view(), bad, nullptr, ym}, stream).code(), absl::StatusCode::kInvalidArgument);
  bad = w.view();
  bad.row_sum = nullptr;
  EXPECT_EQ(MatmulInt8({x.view(), bad, nullptr, ym}, stream).code(), absl::StatusCode::kInvalidArgument);
  bad = w.view();
  bad.cols = kInt8MaxCols + 1;
  bad.padded_k = Int8PaddedK(bad.cols);
  EXPECT_EQ(MatmulInt8({x.view(), bad, nullptr, ym}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MatmulInt8({support::Int8Rows(2, 64).view(), w.view(), nullptr, ym}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MatmulInt8({x.view(), w.view(), nullptr, MakeMatrix(y.data(), DType::kF32, 2, 16)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
