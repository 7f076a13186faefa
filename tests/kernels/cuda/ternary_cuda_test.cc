// Compares the CUDA paths of the ternary ops with the plain CPU loops: every byte must be equal.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/ternarize.h"
#include "tests/support/cuda_rows.h"
#include "tests/support/isas.h"
#include "tests/support/ternary.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::DeviceBytes;
using support::DeviceRows;

class TernaryCudaTest : public support::CudaTest {};

TEST_F(TernaryCudaTest, TernarizeGivesTheBytesOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t k : {1, 13, 16, 63, 64, 65, 576}) {
      for (const std::int64_t n : {1, 7, 16, 17, 300}) {
        const auto w = support::ToBytes(support::NormalVector(3, n * k, 0.03f), dtype);
        std::vector<float> scale(static_cast<std::size_t>(n));
        std::vector<std::uint8_t> rows(static_cast<std::size_t>(n * TernaryRowBytes(k)));
        std::vector<std::uint8_t> tiles(static_cast<std::size_t>(PackedTernaryBytes(n, k)));
        ASSERT_TRUE(Ternarize({MakeConstMatrix(w.data(), dtype, n, k), scale.data(), rows.data(), tiles.data()},
                              CpuStream(Isa::kPlain))
                        .ok());
        DeviceBytes device_w(*context_, w), got_scale(*context_, n * 4);
        DeviceBytes got_rows(*context_, static_cast<std::int64_t>(rows.size()));
        DeviceBytes got_tiles(*context_, static_cast<std::int64_t>(tiles.size()));
        const absl::Status status = Ternarize({MakeConstMatrix(device_w.As(), dtype, n, k), got_scale.As<float>(),
                                               got_rows.As<std::uint8_t>(), got_tiles.As<std::uint8_t>()},
                                              stream_);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(got_scale.Equals(scale.data())) << n << "x" << k;
        EXPECT_TRUE(got_rows.Equals(rows.data())) << n << "x" << k;
        EXPECT_TRUE(got_tiles.Equals(tiles.data())) << n << "x" << k;
      }
    }
  }
}

// Up to 16 rows use the fused kernel, more use cuBLASLt.
TEST_F(TernaryCudaTest, MatmulGivesTheBytesOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t m : {1, 3, 4, 5, 16, 17, 64, 131}) {
      for (const auto& [n, k] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 13}, {33, 65}, {64, 576}, {130, 1536}}) {
        for (const int outliers : {0, 8}) {
          support::Int8Rows x(m, k, 64);
          const std::vector<float> values = support::AwkwardRows(9, m, k);
          ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(values.data(), DType::kF32, m, k), x.view(), outliers},
                                   CpuStream(DetectIsa()))
                          .ok());
          const std::vector<float> scale = support::NormalVector(3, n, 0.01f), bias = support::NormalVector(5, n);
          const support::TernaryWeight w(support::TernaryVector(2, n * k), scale, n, k);
          const bool with_bias = (m + n) % 2 == 0;
          std::vector<std::uint8_t> want(static_cast<std::size_t>(m * n * SizeOf(dtype)));
          ASSERT_TRUE(MatmulTernary(
                          {x.view(), w.view(), with_bias ? bias.data() : nullptr, MakeMatrix(want.data(), dtype, m, n)},
                          CpuStream(Isa::kPlain))
                          .ok());
          const DeviceRows device_x = DeviceRows::Copy(*context_, x.view());
          DeviceBytes tiles(*context_, w.view().tiles, PackedTernaryBytes(n, k));
          DeviceBytes device_scale(*context_, scale), device_bias(*context_, bias);
          DeviceBytes y(*context_, static_cast<std::int64_t>(want.size()));
          const PackedTernaryWeight device_w{tiles.As<std::uint8_t>(), device_scale.As<float>(), n, k,
                                             TernaryPaddedK(k)};
          const absl::Status status =
              MatmulTernary({device_x.view(), device_w, with_bias ? device_bias.As<float>() : nullptr,
                             MakeMatrix(y.As(), dtype, m, n)},
                            stream_);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(y.Equals(want.data())) << m << "x" << n << "x" << k;
        }
      }
    }
  }
}

TEST_F(TernaryCudaTest, ProductWithoutColumnsIsTheBias) {
  for (const std::int64_t m : {1, 16, 17, 131}) {
    const support::NoColumns no_columns(*context_, m);
    const std::int64_t n = no_columns.kN;
    DeviceBytes tiles(*context_, 0), y(*context_, m * n * 4);
    const PackedTernaryWeight w{tiles.As<std::uint8_t>(), no_columns.scale.As<float>(), n, 0, 0};
    const absl::Status status = MatmulTernary(
        {no_columns.x.view(), w, no_columns.bias.As<float>(), MakeMatrix(y.As(), DType::kF32, m, n)}, stream_);
    ASSERT_TRUE(status.ok()) << status << " M " << m;
    EXPECT_TRUE(y.Equals(no_columns.want.data())) << m;
  }
}

TEST_F(TernaryCudaTest, Rejects16BitCodes) {
  support::WideRows x(1, 64);
  const support::TernaryWeight w(support::TernaryVector(2, 64), {1.0f}, 1, 64);
  DeviceBytes y(*context_, 4);
  const absl::Status status =
      MatmulTernary({x.view(), w.view(), nullptr, MakeMatrix(y.As(), DType::kF32, 1, 1)}, stream_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
}

}  // namespace
}  // namespace nibble::kernels
