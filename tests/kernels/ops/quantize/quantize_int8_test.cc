#include "kernels/ops/quantize/quantize_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Int8Rows;

Int8Rows Quantized(const std::vector<std::uint8_t>& x, DType dtype, std::int64_t rows, std::int64_t cols,
                   int max_outliers, const Stream& stream, std::int64_t extra_stride = 0) {
  Int8Rows out(rows, cols, extra_stride);
  EXPECT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), dtype, rows, cols), out.view(), max_outliers}, stream).ok());
  EXPECT_TRUE(out.GuardsIntact());
  return out;
}

TEST(QuantizeInt8Test, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const std::int64_t cols : {1, 13, 15, 16, 17, 63, 64, 65, 576, 1536, 2048}) {
    for (const std::int64_t rows : {0, 1, 7, 36}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const auto x = support::ToBytes(support::AwkwardRows(static_cast<std::uint64_t>(cols), rows, cols), dtype);
        for (const int max_outliers : {0, 1, 8, 16}) {
          const Int8Rows want = Quantized(x, dtype, rows, cols, max_outliers, CpuStream(Isa::kPlain), 64);
          for (const Isa isa : support::Isas()) {
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
              const Int8Rows got = Quantized(x, dtype, rows, cols, max_outliers, CpuStream(isa, pool), 64);
              EXPECT_TRUE(got.SameBytes(want)) << Name(isa) << " rows " << rows << " cols " << cols << " outliers "
                                               << max_outliers << " " << Name(dtype);
            }
          }
        }
      }
    }
  }
}

TEST(QuantizeInt8Test, CodesAreTheNearestMultiplesOfTheScale) {
  const std::int64_t rows = 20, cols = 200;
  const std::vector<float> x = support::NormalVector(3, rows * cols);
  Int8Rows out(rows, cols);
  ASSERT_TRUE(
      QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, rows, cols), out.view(), 0}, CpuStream(Isa::kPlain)).ok());
  const QuantizedRows q = out.view();
  for (std::int64_t r = 0; r < rows; ++r) {
    float absmax = 0;
    for (std::int64_t k = 0; k < cols; ++k)
      absmax = std::max(absmax, std::fabs(x[static_cast<std::size_t>(r * cols + k)]));
    EXPECT_EQ(q.scale[r], absmax / 127.0f);
    EXPECT_EQ(q.num_outliers[r], 0);
    for (std::int64_t k = 0; k < cols; ++k) {
      const double steps = static_cast<double>(x[static_cast<std::size_t>(r * cols + k)]) / q.scale[r];
      // Two roundings come before the rounding to an integer. Each changes the value by at most 127 * 2^-24; the bound
      // is twice their sum.
      EXPECT_LE(std::fabs(steps - q.codes[r * q.stride + k]), 0.5 + 127 * 0x1p-22);
    }
    for (std::int64_t k = cols; k < q.stride; ++k) EXPECT_EQ(q.codes[r * q.stride + k], 0);
  }
}

TEST(QuantizeInt8Test, LargestOutliersAreTakenAndListedInOrderOfIndex) {
  for (const Isa isa : support::Isas()) {
    std::vector<float> x(100, 0.5f);
    x[90] = 50.0f;
    x[3] = -40.0f;
    x[40] = 40.0f;  // as large as x[3]: the lower index is kept
    x[7] = 30.0f;
    Int8Rows out(1, 100);
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 1, 100), out.view(), 2}, CpuStream(isa)).ok());
    const QuantizedRows q = out.view();
    ASSERT_EQ(q.num_outliers[0], 2);
    EXPECT_EQ(q.outlier_index[0], 3);
    EXPECT_EQ(q.outlier_value[0], -40.0f);
    EXPECT_EQ(q.outlier_index[1], 90);
    EXPECT_EQ(q.outlier_value[1], 50.0f);
    EXPECT_EQ(q.codes[3], 0);
    EXPECT_EQ(q.codes[90], 0);
    EXPECT_EQ(q.codes[40], 127) << "the largest element that is not an outlier sets the scale";
    EXPECT_EQ(q.scale[0], 40.0f / 127.0f);
  }
}

TEST(QuantizeInt8Test, ElementAtExactlySixTimesTheMeanIsNoOutlier) {
  for (const Isa isa : support::Isas()) {
    Int8Rows out(1, 64);
    // The sum is 96 + 32 * 29 = 1024, the mean 16, the threshold 96.
    std::vector<float> exact(64, 0.0f);
    exact[5] = 96.0f;
    for (std::size_t i = 8; i < 40; ++i) exact[i] = 29.0f;
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(exact.data(), DType::kF32, 1, 64), out.view(), 8}, CpuStream(isa)).ok());
    EXPECT_EQ(out.view().num_outliers[0], 0);
    exact[5] = std::nextafter(96.0f, 200.0f);  // the sum rounds back to 1024: the threshold stays
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(exact.data(), DType::kF32, 1, 64), out.view(), 8}, CpuStream(isa)).ok());
    EXPECT_EQ(out.view().num_outliers[0], 1);
  }
}

TEST(QuantizeInt8Test, TinyRowGetsTheSmallestScale) {
  for (const Isa isa : support::Isas()) {
    std::vector<float> x(20, 1e-20f);
    Int8Rows out(1, 20);
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 1, 20), out.view(), 0}, CpuStream(isa)).ok());
    EXPECT_EQ(out.view().scale[0], 1e-12f / 127.0f);
    for (int k = 0; k < 20; ++k) EXPECT_EQ(out.view().codes[k], 0);
  }
}

TEST(QuantizeInt8Test, OutlierBuffersMayBeNullWithoutOutliers) {
  std::vector<float> x(70, 2.0f);
  Int8Rows out(1, 70);
  QuantizedRows view = out.view();
  view.num_outliers = nullptr;
  view.outlier_index = nullptr;
  view.outlier_value = nullptr;
  const ConstMatrix m = MakeConstMatrix(x.data(), DType::kF32, 1, 70);
  for (const Isa isa : support::Isas()) EXPECT_TRUE(QuantizeInt8({m, view, 0}, CpuStream(isa)).ok());
  EXPECT_EQ(QuantizeInt8({m, view, 1}, CpuStream(Isa::kPlain)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(QuantizeInt8Test, RejectsBadArguments) {
  std::vector<float> x(70, 2.0f);
  Int8Rows out(1, 70);
  const ConstMatrix m = MakeConstMatrix(x.data(), DType::kF32, 1, 70);
  const Stream stream = CpuStream(Isa::kPlain);
  for (const int max_outliers : {-1, 17}) {
    EXPECT_EQ(QuantizeInt8({m, out.view(), max_outliers}, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  ConstMatrix f16 = m;
  f16.dtype = DType::kF16;
  EXPECT_EQ(QuantizeInt8({f16, out.view(), 0}, stream).code(), absl::StatusCode::kInvalidArgument);
  QuantizedRows odd = out.view();
  odd.stride = 70;
  EXPECT_EQ(QuantizeInt8({m, odd, 0}, stream).code(), absl::StatusCode::kInvalidArgument);
  QuantizedRows short_rows = out.view();
  short_rows.cols = 69;
  EXPECT_EQ(QuantizeInt8({m, short_rows, 0}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeInt8({MakeConstMatrix(nullptr, DType::kF32, 1, 70), out.view(), 0}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 1, 0), Int8Rows(1, 0).view(), 0}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
