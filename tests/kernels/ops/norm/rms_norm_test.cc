#include "kernels/ops/norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

TEST(RmsNormTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const std::int64_t cols : {1, 13, 15, 16, 17, 63, 64, 65, 576, 1536}) {
    for (const std::int64_t rows : {0, 1, 7, 45}) {
      const std::vector<float> weight = support::NormalVector(5, cols);
      const std::vector<float> values = support::AwkwardRows(static_cast<std::uint64_t>(cols), rows, cols);
      for (const DType in : {DType::kF32, DType::kBF16}) {
        for (const DType out : {DType::kF32, DType::kBF16}) {
          const auto x = support::ToBytes(values, in);
          const ConstMatrix xm = MakeConstMatrix(x.data(), in, rows, cols);
          GuardedBytes want(rows * cols * SizeOf(out)), want_rstd(rows * 4);
          ASSERT_TRUE(
              RmsNorm({xm, weight.data(), 1e-5f, MakeMatrix(want.data(), out, rows, cols), want_rstd.As<float>()},
                      CpuStream(Isa::kPlain))
                  .ok());
          for (const Isa isa : support::Isas()) {
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
              GuardedBytes y(rows * cols * SizeOf(out)), rstd(rows * 4);
              ASSERT_TRUE(RmsNorm({xm, weight.data(), 1e-5f, MakeMatrix(y.data(), out, rows, cols), rstd.As<float>()},
                                  CpuStream(isa, pool))
                              .ok());
              EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size())) << Name(isa) << " cols " << cols;
              EXPECT_TRUE(support::BytesEqual(rstd.data(), want_rstd.data(), want_rstd.size())) << Name(isa);
              EXPECT_TRUE(y.GuardsIntact() && rstd.GuardsIntact());
            }
          }
        }
      }
    }
  }
}

TEST(RmsNormTest, LiesWithinTheBoundOfItsRoundings) {
  const std::int64_t rows = 9, cols = 1000;
  const std::vector<float> x = support::NormalVector(1, rows * cols, 3.0f);
  const std::vector<float> weight = support::NormalVector(2, cols);
  std::vector<float> y(x.size());
  ASSERT_TRUE(RmsNorm({MakeConstMatrix(x.data(), DType::kF32, rows, cols), weight.data(), 1e-5f,
                       MakeMatrix(y.data(), DType::kF32, rows, cols), nullptr},
                      CpuStream(DetectIsa()))
                  .ok());
  std::vector<double> exact(x.size());
  for (std::size_t r = 0; r < 9; ++r) {
    double sum = 0;
    for (std::size_t k = 0; k < 1000; ++k) sum += static_cast<double>(x[r * 1000 + k]) * x[r * 1000 + k];
    const double rstd = 1.0 / std::sqrt(sum / 1000 + static_cast<double>(1e-5f));
    for (std::size_t k = 0; k < 1000; ++k) exact[r * 1000 + k] = x[r * 1000 + k] * rstd * weight[k];
  }
  // 63 additions per lane, 4 in the tree, then division, sum, root, division and two products.
  EXPECT_TRUE(support::AllWithin(y, exact, [&](std::size_t i) { return support::Gamma(73) * std::fabs(exact[i]); }));
}

TEST(RmsNormTest, TheOutputMayBeTheInput) {
  const std::int64_t rows = 3, cols = 70;
  const std::vector<float> x = support::NormalVector(1, rows * cols);
  const std::vector<float> weight = support::NormalVector(2, cols);
  for (const Isa isa : support::Isas()) {
    std::vector<float> apart(x.size()), same = x;
    const Matrix in_place = MakeMatrix(same.data(), DType::kF32, rows, cols);
    ASSERT_TRUE(RmsNorm({MakeConstMatrix(x.data(), DType::kF32, rows, cols), weight.data(), 1e-5f,
                         MakeMatrix(apart.data(), DType::kF32, rows, cols), nullptr},
                        CpuStream(isa))
                    .ok());
    ASSERT_TRUE(RmsNorm({in_place, weight.data(), 1e-5f, in_place, nullptr}, CpuStream(isa)).ok());
    EXPECT_EQ(same, apart);
  }
}

TEST(RmsNormTest, RejectsBadArguments) {
  std::vector<float> x(70, 2.0f), weight(70, 1.0f), y(70);
  const ConstMatrix m = MakeConstMatrix(x.data(), DType::kF32, 1, 70);
  const Matrix ym = MakeMatrix(y.data(), DType::kF32, 1, 70);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(RmsNorm({m, nullptr, 1e-5f, ym, nullptr}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNorm({m, weight.data(), 1e-5f, MakeMatrix(y.data(), DType::kF32, 1, 69), nullptr}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNorm({m, weight.data(), 1e-5f, MakeMatrix(y.data(), DType::kI8, 1, 70), nullptr}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNorm({MakeConstMatrix(x.data(), DType::kF32, 1, 0), weight.data(), 1e-5f,
                     MakeMatrix(y.data(), DType::kF32, 1, 0), nullptr},
                    stream)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
