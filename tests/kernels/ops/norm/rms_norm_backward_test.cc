#include "kernels/ops/norm/rms_norm_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ops/norm/rms_norm.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

TEST(RmsNormBackwardTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const std::int64_t cols : {1, 13, 16, 17, 64, 65, 576}) {
    for (const std::int64_t rows : {0, 1, 7, 45}) {
      const std::vector<float> weight = support::NormalVector(5, cols);
      const std::vector<float> rstd = support::NormalVector(6, rows);
      for (const DType in : {DType::kF32, DType::kBF16}) {
        for (const DType grad : {DType::kF32, DType::kBF16}) {
          for (const DType out : {DType::kF32, DType::kBF16}) {
            const auto x = support::ToBytes(support::NormalVector(1, rows * cols), in);
            const auto g = support::ToBytes(support::NormalVector(2, rows * cols), grad);
            const ConstMatrix xm = MakeConstMatrix(x.data(), in, rows, cols);
            const ConstMatrix gm = MakeConstMatrix(g.data(), grad, rows, cols);
            GuardedBytes want(rows * cols * SizeOf(out));
            ASSERT_TRUE(RmsNormBackward({xm, gm, weight.data(), rstd.data(), MakeMatrix(want.data(), out, rows, cols)},
                                        CpuStream(Isa::kPlain))
                            .ok());
            for (const Isa isa : support::Isas()) {
              for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
                GuardedBytes y(rows * cols * SizeOf(out));
                ASSERT_TRUE(RmsNormBackward({xm, gm, weight.data(), rstd.data(), MakeMatrix(y.data(), out, rows, cols)},
                                            CpuStream(isa, pool))
                                .ok());
                EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size())) << Name(isa) << " cols " << cols;
                EXPECT_TRUE(y.GuardsIntact());
              }
            }
          }
        }
      }
    }
  }
}

// d/dx of sum(g * rms_norm(x)) by central differences in double.
TEST(RmsNormBackwardTest, AgreesWithFiniteDifferences) {
  const std::size_t cols = 37;
  const std::vector<float> x = support::NormalVector(1, 37), g = support::NormalVector(2, 37),
                           weight = support::NormalVector(3, 37);
  const double eps = static_cast<double>(1e-5f);
  const auto loss = [&](const std::vector<double>& v) {
    double sum = 0, total = 0;
    for (const double e : v) sum += e * e;
    const double rstd = 1.0 / std::sqrt(sum / static_cast<double>(cols) + eps);
    for (std::size_t k = 0; k < cols; ++k) total += g[k] * v[k] * rstd * weight[k];
    return total;
  };
  std::vector<float> y(cols), grad(cols);
  float rstd = 0;
  const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, 1, 37);
  ASSERT_TRUE(
      RmsNorm({xm, weight.data(), 1e-5f, MakeMatrix(y.data(), DType::kF32, 1, 37), &rstd}, CpuStream(DetectIsa()))
          .ok());
  ASSERT_TRUE(RmsNormBackward({xm, MakeConstMatrix(g.data(), DType::kF32, 1, 37), weight.data(), &rstd,
                               MakeMatrix(grad.data(), DType::kF32, 1, 37)},
                              CpuStream(DetectIsa()))
                  .ok());
  std::vector<double> differences(cols);
  for (std::size_t k = 0; k < cols; ++k) {
    std::vector<double> up(x.begin(), x.end()), down(x.begin(), x.end());
    up[k] += 1e-5;
    down[k] -= 1e-5;
    differences[k] = (loss(up) - loss(down)) / 2e-5;
  }
  EXPECT_TRUE(support::AllWithin(grad, differences, [](std::size_t) { return 1e-5; }));
}

TEST(RmsNormBackwardTest, RejectsBadArguments) {
  std::vector<float> x(70, 2.0f), weight(70, 1.0f), rstd(1, 1.0f), y(70);
  const ConstMatrix m = MakeConstMatrix(x.data(), DType::kF32, 1, 70);
  const Matrix ym = MakeMatrix(y.data(), DType::kF32, 1, 70);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_TRUE(RmsNormBackward({m, m, weight.data(), rstd.data(), ym}, stream).ok());
  EXPECT_EQ(RmsNormBackward({m, m, nullptr, rstd.data(), ym}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormBackward({m, m, weight.data(), nullptr, ym}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormBackward({m, MakeConstMatrix(x.data(), DType::kF32, 1, 69), weight.data(), rstd.data(), ym}, stream)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
