#include "kernels/ops/matmul/matmul_dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

struct Case {
  std::int64_t rows, n, k;
  DType x_dtype, w_dtype;
  std::vector<float> x, w, bias;  // rounded to their types
};

Case MakeCase(std::int64_t rows, std::int64_t n, std::int64_t k, DType x_dtype, DType w_dtype) {
  Case c{rows,
         n,
         k,
         x_dtype,
         w_dtype,
         support::NormalVector(1, rows * k),
         support::NormalVector(2, n * k),
         support::NormalVector(3, n)};
  if (x_dtype == DType::kBF16)
    for (float& v : c.x) v = ToFloat(ToBF16(v));
  if (w_dtype == DType::kBF16)
    for (float& v : c.w) v = ToFloat(ToBF16(v));
  return c;
}

// One chain of fused multiply-adds over k for each output, from the unpacked weight.
std::vector<float> Oracle(const Case& c, bool bias) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      float v = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        v = std::fma(c.x[static_cast<std::size_t>(r * c.k + k)], c.w[static_cast<std::size_t>(n * c.k + k)], v);
      }
      y.push_back(bias ? v + c.bias[static_cast<std::size_t>(n)] : v);
    }
  }
  return y;
}

std::vector<std::uint8_t> Pack(const Case& c) {
  const std::vector<std::uint8_t> rows = support::ToBytes(c.w, c.w_dtype);
  std::vector<std::uint8_t> panels(static_cast<std::size_t>(PackedDenseElements(c.n, c.k) * SizeOf(c.w_dtype)));
  PackDenseWeight(rows.data(), c.w_dtype, c.n, c.k, panels.data());
  return panels;
}

TEST(MatmulDenseTest, EveryPathAndThreadCountGivesTheChainsBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  const std::int64_t shapes[][3] = {{1, 1, 1},   {7, 13, 7},   {0, 5, 9},   {1, 15, 63},   {2, 16, 64},
                                    {3, 17, 65}, {4, 33, 576}, {6, 65, 33}, {13, 128, 63}, {97, 49, 20}};
  for (const auto& [rows, n, k] : shapes) {
    for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
      for (const DType w_dtype : {DType::kF32, DType::kBF16}) {
        const Case c = MakeCase(rows, n, k, x_dtype, w_dtype);
        const auto x = support::ToBytes(c.x, x_dtype);
        const auto panels = Pack(c);
        for (const bool bias : {false, true}) {
          const std::vector<float> oracle = Oracle(c, bias);
          for (const DType out : {DType::kF32, DType::kBF16}) {
            const auto want = support::ToBytes(oracle, out);
            for (const Isa isa : support::Isas()) {
              for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
                GuardedBytes y(rows * n * SizeOf(out));
                ASSERT_TRUE(MatmulDense({MakeConstMatrix(x.data(), x_dtype, rows, k),
                                         {panels.data(), w_dtype, n, k},
                                         bias ? c.bias.data() : nullptr,
                                         MakeMatrix(y.data(), out, rows, n)},
                                        CpuStream(isa, pool))
                                .ok());
                EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size()))
                    << Name(isa) << " M " << rows << " N " << n << " K " << k << " " << Name(x_dtype) << " "
                    << Name(w_dtype) << " " << Name(out);
                EXPECT_TRUE(y.GuardsIntact());
              }
            }
          }
        }
      }
    }
  }
}

TEST(MatmulDenseTest, AccumulatesTheWholeSumOnEveryPath) {
  const std::int64_t shapes[][3] = {{7, 13, 16}, {1, 17, 0}, {6, 65, 33}, {13, 128, 63}};
  for (const auto& [rows, n, k] : shapes) {
    const Case c = MakeCase(rows, n, k, DType::kF32, DType::kF32);
    const auto panels = Pack(c);
    const std::vector<float> before = support::NormalVector(4, rows * n);
    for (const bool bias : {false, true}) {
      std::vector<float> want = Oracle(c, bias);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = before[i] + want[i];
      for (const Isa isa : support::Isas()) {
        GuardedBytes y(rows * n * 4);
        std::memcpy(y.data(), before.data(), before.size() * 4);
        ASSERT_TRUE(MatmulDense({.x = MakeConstMatrix(c.x.data(), DType::kF32, rows, k),
                                 .w = {panels.data(), DType::kF32, n, k},
                                 .bias = bias ? c.bias.data() : nullptr,
                                 .y = MakeMatrix(y.data(), DType::kF32, rows, n),
                                 .accumulate = true},
                                CpuStream(isa))
                        .ok());
        EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size() * 4))
            << Name(isa) << " M " << rows << " N " << n << " K " << k;
        EXPECT_TRUE(y.GuardsIntact());
      }
    }
  }
}

TEST(MatmulDenseTest, LiesWithinTheBoundOfTheChain) {
  const Case c = MakeCase(5, 40, 700, DType::kF32, DType::kF32);
  const auto panels = Pack(c);
  std::vector<float> y(200);
  ASSERT_TRUE(MatmulDense({MakeConstMatrix(c.x.data(), DType::kF32, 5, 700),
                           {panels.data(), DType::kF32, 40, 700},
                           nullptr,
                           MakeMatrix(y.data(), DType::kF32, 5, 40)},
                          CpuStream(DetectIsa()))
                  .ok());
  std::vector<double> exact(200), sum_abs(200);
  for (std::size_t r = 0; r < 5; ++r) {
    for (std::size_t n = 0; n < 40; ++n) {
      for (std::size_t k = 0; k < 700; ++k) {
        const double term = static_cast<double>(c.x[r * 700 + k]) * c.w[n * 700 + k];
        exact[r * 40 + n] += term;
        sum_abs[r * 40 + n] += std::fabs(term);
      }
    }
  }
  EXPECT_TRUE(support::AllWithin(y, exact, [&](std::size_t i) { return support::DotBound(700, sum_abs[i]); }));
}

TEST(MatmulDenseTest, PaddingRowsOfTheLastPanelAreNotWritten) {
  // The products of a NaN with the 15 padding rows are NaN: they must not be written past the 17 outputs.
  const std::vector<float> x = {NAN, 1.0f};
  const std::vector<float> w(2 * 17, 1.0f);
  std::vector<float> panels(static_cast<std::size_t>(PackedDenseElements(17, 2)));
  PackDenseWeight(w.data(), DType::kF32, 17, 2, panels.data());
  for (const Isa isa : support::Isas()) {
    GuardedBytes y(17 * 4);
    ASSERT_TRUE(MatmulDense({MakeConstMatrix(x.data(), DType::kF32, 1, 2),
                             {panels.data(), DType::kF32, 17, 2},
                             nullptr,
                             MakeMatrix(y.data(), DType::kF32, 1, 17)},
                            CpuStream(isa))
                    .ok());
    EXPECT_TRUE(y.GuardsIntact());
    for (int n = 0; n < 17; ++n) EXPECT_TRUE(std::isnan(y.As<float>()[n]));
  }
}

TEST(MatmulDenseTest, RejectsBadArguments) {
  std::vector<float> x(130), y(34), panels(static_cast<std::size_t>(PackedDenseElements(17, 65)));
  const Stream stream = CpuStream(Isa::kPlain);
  const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, 2, 65);
  const Matrix ym = MakeMatrix(y.data(), DType::kF32, 2, 17);
  EXPECT_TRUE(MatmulDense({xm, {panels.data(), DType::kF32, 17, 65}, nullptr, ym}, stream).ok());
  EXPECT_EQ(MatmulDense({xm, {panels.data(), DType::kF16, 17, 65}, nullptr, ym}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  const Matrix bf16 = MakeMatrix(y.data(), DType::kBF16, 2, 17);
  EXPECT_EQ(
      MatmulDense({.x = xm, .w = {panels.data(), DType::kF32, 17, 65}, .y = bf16, .accumulate = true}, stream).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MatmulDense({xm, {panels.data(), DType::kF32, 17, 64}, nullptr, ym}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MatmulDense({xm, {panels.data(), DType::kF32, 18, 65}, nullptr, ym}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MatmulDense({xm, {nullptr, DType::kF32, 17, 65}, nullptr, ym}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
