#include "kernels/ops/norm/rms_norm_quantize.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Int8Rows;

TEST(RmsNormQuantizeTest, EqualsRmsNormThenQuantizeOnEveryPath) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const std::int64_t cols : {1, 13, 63, 64, 65, 576, 1536}) {
    for (const std::int64_t rows : {0, 1, 7, 45}) {
      const std::vector<float> weight = support::NormalVector(5, cols);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const auto x =
            support::ToBytes(support::AwkwardRows(static_cast<std::uint64_t>(cols + rows), rows, cols), dtype);
        const ConstMatrix xm = MakeConstMatrix(x.data(), dtype, rows, cols);
        for (const int max_outliers : {0, 3, 8, 16}) {
          for (const Isa isa : support::Isas()) {
            std::vector<float> y(static_cast<std::size_t>(rows * cols));
            const Matrix normed = MakeMatrix(y.data(), DType::kF32, rows, cols);
            Int8Rows want(rows, cols);
            ASSERT_TRUE(RmsNorm({xm, weight.data(), 1e-5f, normed, nullptr}, CpuStream(Isa::kPlain)).ok());
            ASSERT_TRUE(QuantizeInt8({normed, want.view(), max_outliers}, CpuStream(isa)).ok());
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
              Int8Rows got(rows, cols);
              ASSERT_TRUE(
                  RmsNormQuantize({xm, weight.data(), 1e-5f, got.view(), max_outliers}, CpuStream(isa, pool)).ok());
              EXPECT_TRUE(got.SameBytes(want)) << Name(isa) << " rows " << rows << " cols " << cols << " outliers "
                                               << max_outliers << " " << Name(dtype);
              EXPECT_TRUE(got.GuardsIntact());
            }
          }
        }
      }
    }
  }
}

TEST(RmsNormQuantizeTest, EqualsRmsNormThenQuantizeWithReciprocalScales) {
  const std::int64_t rows = 7, cols = 65;
  const std::vector<float> x = support::AwkwardRows(9, rows, cols), weight = support::NormalVector(5, cols);
  const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, rows, cols);
  const QuantizeOptions how = {.scaling = RowScaling::kReciprocal};
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(x.size());
    const Matrix normed = MakeMatrix(y.data(), DType::kF32, rows, cols);
    Int8Rows want(rows, cols), got(rows, cols);
    ASSERT_TRUE(RmsNorm({xm, weight.data(), 1e-5f, normed, nullptr}, CpuStream(Isa::kPlain)).ok());
    ASSERT_TRUE(QuantizeInt8({normed, want.view(), 0, how}, CpuStream(Isa::kPlain)).ok());
    ASSERT_TRUE(RmsNormQuantize({xm, weight.data(), 1e-5f, got.view(), 0, how}, CpuStream(isa)).ok());
    EXPECT_TRUE(got.SameBytes(want)) << Name(isa);
  }
}

TEST(RmsNormQuantizeTest, RowDoesNotDependOnItsNeighbours) {
  const std::int64_t rows = 11, cols = 576;
  const std::vector<float> x = support::AwkwardRows(9, rows, cols);
  const std::vector<float> weight = support::NormalVector(5, cols);
  for (const Isa isa : support::Isas()) {
    Int8Rows all(rows, cols);
    ASSERT_TRUE(
        RmsNormQuantize({MakeConstMatrix(x.data(), DType::kF32, rows, cols), weight.data(), 1e-5f, all.view(), 8},
                        CpuStream(isa))
            .ok());
    for (std::int64_t r = 0; r < rows; ++r) {
      Int8Rows one(1, cols);
      ASSERT_TRUE(RmsNormQuantize(
                      {MakeConstMatrix(x.data() + r * cols, DType::kF32, 1, cols), weight.data(), 1e-5f, one.view(), 8},
                      CpuStream(isa))
                      .ok());
      EXPECT_TRUE(support::BytesEqual(one.view().codes, all.view().codes + r * all.view().stride, cols));
      EXPECT_EQ(one.view().scale[0], all.view().scale[r]);
      EXPECT_EQ(one.view().num_outliers[0], all.view().num_outliers[r]);
    }
  }
}

TEST(RmsNormQuantizeTest, RejectsBadArguments) {
  std::vector<float> x(70, 2.0f);
  std::vector<float> weight(70, 1.0f);
  Int8Rows out(1, 70);
  const ConstMatrix m = MakeConstMatrix(x.data(), DType::kF32, 1, 70);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(RmsNormQuantize({m, nullptr, 1e-5f, out.view(), 0}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormQuantize({m, weight.data(), 1e-5f, out.view(), 17}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormQuantize({m, weight.data(), 1e-5f, Int8Rows(2, 70).view(), 0}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
