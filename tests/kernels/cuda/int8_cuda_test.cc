// Compares the CUDA paths of the int8 ops with the plain CPU loops: every byte must be equal.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/norm/rms_norm_quantize.h"
#include "kernels/ops/quantize/dequantize_int8.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "tests/support/cuda_rows.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"
#include "tests/support/ternary.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::DeviceBytes;
using support::DeviceRows;
using support::Int8Rows;

class Int8CudaTest : public support::CudaTest {};

constexpr std::int64_t kWidths[] = {1, 13, 63, 64, 65, 576, 1536, 10240, 10241};

TEST_F(Int8CudaTest, QuantizeGivesTheCpusBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t k : kWidths) {
      for (const int outliers : {0, 1, 8, 16}) {
        const std::int64_t m = 27;
        const std::vector<std::uint8_t> x = support::ToBytes(support::AwkwardRows(4, m, k), dtype);
        Int8Rows want(m, k, 64);
        ASSERT_TRUE(
            QuantizeInt8({MakeConstMatrix(x.data(), dtype, m, k), want.view(), outliers}, CpuStream(Isa::kPlain)).ok());
        DeviceBytes device_x(*context_, x);
        DeviceRows got(*context_, want.view());
        const absl::Status status =
            QuantizeInt8({MakeConstMatrix(device_x.As(), dtype, m, k), got.view(), outliers}, stream_);
        ASSERT_TRUE(status.ok()) << status;
        got.ExpectEqual(want.view(), absl::StrCat("K ", k, " outliers ", outliers));
      }
    }
  }
}

TEST_F(Int8CudaTest, RmsNormQuantizeGivesTheCpusBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t k : kWidths) {
      const std::int64_t m = 27;
      const std::vector<std::uint8_t> x = support::ToBytes(support::AwkwardRows(4, m, k), dtype);
      const std::vector<float> weight = support::NormalVector(8, k);
      Int8Rows want(m, k);
      ASSERT_TRUE(RmsNormQuantize({MakeConstMatrix(x.data(), dtype, m, k), weight.data(), 1e-5f, want.view(), 8},
                                  CpuStream(Isa::kPlain))
                      .ok());
      DeviceBytes device_x(*context_, x), device_weight(*context_, weight);
      DeviceRows got(*context_, want.view());
      const absl::Status status = RmsNormQuantize(
          {MakeConstMatrix(device_x.As(), dtype, m, k), device_weight.As<float>(), 1e-5f, got.view(), 8}, stream_);
      ASSERT_TRUE(status.ok()) << status;
      got.ExpectEqual(want.view(), absl::StrCat("K ", k));
    }
  }
}

// BitNet's activations: 4, 8 and 16 bits, one scale per row or one for all rows, with the scales of each preset.
TEST_F(Int8CudaTest, OptionsGiveTheCpusBytes) {
  for (const std::int64_t k : kWidths) {
    for (const int bits : {4, 8, 16}) {
      for (const bool per_tensor : {false, true}) {
        const std::int64_t m = 27;
        QuantizeOptions how{1e-5f, bits, per_tensor};
        how.scaling = k % 2 == 0 ? RowScaling::kNative : RowScaling::kReciprocal;
        const std::vector<float> x = support::AwkwardRows(4, m, k), weight = support::NormalVector(8, k);
        DeviceBytes device_x(*context_, x), device_weight(*context_, weight);
        const ConstMatrix host = MakeConstMatrix(x.data(), DType::kF32, m, k);
        const ConstMatrix device = MakeConstMatrix(device_x.As(), DType::kF32, m, k);
        Int8Rows narrow(m, k);
        support::WideRows wide(m, k);
        const QuantizedRows want = bits == 16 ? wide.view() : narrow.view();
        DeviceRows got(*context_, want);
        ASSERT_TRUE(QuantizeInt8({host, want, 0, how}, CpuStream(Isa::kPlain)).ok());
        absl::Status status = QuantizeInt8({device, got.view(), 0, how}, stream_);
        ASSERT_TRUE(status.ok()) << status;
        got.ExpectEqual(want, absl::StrCat("K ", k, " bits ", bits, " per tensor ", per_tensor));
        std::vector<float> rstd(static_cast<std::size_t>(m));
        DeviceBytes device_rstd(*context_, m * 4);
        const RmsNormQuantizeArgs on_host{host, weight.data(), 1e-5f, want, 0, how, rstd.data()};
        ASSERT_TRUE(RmsNormQuantize(on_host, CpuStream(Isa::kPlain)).ok());
        status = RmsNormQuantize(
            {device, device_weight.As<float>(), 1e-5f, got.view(), 0, how, device_rstd.As<float>()}, stream_);
        ASSERT_TRUE(status.ok()) << status;
        got.ExpectEqual(want, absl::StrCat("norm, K ", k, " bits ", bits, " per tensor ", per_tensor));
        EXPECT_TRUE(device_rstd.Equals(rstd.data()));
      }
    }
  }
}

// Few rows use the fused kernel, 17 and more use cuBLASLt.
TEST_F(Int8CudaTest, MatmulGivesTheCpusBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t m : {1, 3, 4, 5, 16, 17, 64, 131}) {
      for (const auto& [n, k] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 13}, {33, 65}, {64, 576}, {130, 1536}}) {
        Int8Rows x(m, k, 64);
        const std::vector<float> values = support::AwkwardRows(9, m, k);
        ASSERT_TRUE(
            QuantizeInt8({MakeConstMatrix(values.data(), DType::kF32, m, k), x.view(), 8}, CpuStream(DetectIsa()))
                .ok());
        std::vector<float> scale = support::NormalVector(3, n, 0.01f);
        const support::Int8Weight w(support::CodeVector(2, n * k), scale, n, k);
        const std::vector<float> bias = support::NormalVector(5, n);
        const bool with_bias = (m + n) % 2 == 0;
        std::vector<std::uint8_t> want(static_cast<std::size_t>(m * n * SizeOf(dtype)));
        ASSERT_TRUE(
            MatmulInt8({x.view(), w.view(), with_bias ? bias.data() : nullptr, MakeMatrix(want.data(), dtype, m, n)},
                       CpuStream(Isa::kPlain))
                .ok());
        const DeviceRows device_x = DeviceRows::Copy(*context_, x.view());
        DeviceBytes tiles(*context_, w.view().tiles, PackedInt8Bytes(n, k)), device_scale(*context_, scale);
        DeviceBytes row_sum(*context_, w.view().row_sum, RoundUp(n, 16) * 4), device_bias(*context_, bias);
        DeviceBytes y(*context_, static_cast<std::int64_t>(want.size()));
        const PackedInt8Weight device_w{
            tiles.As<std::int8_t>(), device_scale.As<float>(), row_sum.As<std::int32_t>(), n, k, Int8PaddedK(k)};
        const absl::Status status = MatmulInt8(
            {device_x.view(), device_w, with_bias ? device_bias.As<float>() : nullptr, MakeMatrix(y.As(), dtype, m, n)},
            stream_);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(y.Equals(want.data())) << m << "x" << n << "x" << k;
      }
    }
  }
}

TEST_F(Int8CudaTest, ProductWithoutColumnsIsTheBias) {
  for (const std::int64_t m : {1, 16, 17, 131}) {
    const support::NoColumns no_columns(*context_, m);
    const std::int64_t n = no_columns.kN;
    DeviceBytes tiles(*context_, 0), row_sum(*context_, RoundUp(n, 16) * 4), y(*context_, m * n * 4);
    const PackedInt8Weight w{
        tiles.As<std::int8_t>(), no_columns.scale.As<float>(), row_sum.As<std::int32_t>(), n, 0, 0};
    const absl::Status status = MatmulInt8(
        {no_columns.x.view(), w, no_columns.bias.As<float>(), MakeMatrix(y.As(), DType::kF32, m, n)}, stream_);
    ASSERT_TRUE(status.ok()) << status << " M " << m;
    EXPECT_TRUE(y.Equals(no_columns.want.data())) << m;
  }
}

// The reason: docs/adr/0004-activation-quantisation-has-its-own-name.md
TEST_F(Int8CudaTest, ActivationsAreCountedUnderTheirOwnName) {
  const std::int64_t m = 3, k = 64;
  DeviceBytes x(*context_, support::NormalVector(1, m * k));
  Int8Rows like(m, k);
  DeviceRows out(*context_, like.view());
  for (const bool per_tensor : {false, true}) {
    const QuantizeInt8Args args{MakeConstMatrix(x.As(), DType::kF32, m, k), out.view(), 0, {.per_tensor = per_tensor}};
    ASSERT_TRUE(QuantizeActivations(args, stream_).ok());
    EXPECT_FALSE(launches_.Snapshot().contains("quantize_int8"));
    EXPECT_GT(launches_.Snapshot()["quantize_activations"], 0u);
  }
  ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.As(), DType::kF32, m, k), out.view()}, stream_).ok());
  EXPECT_EQ(launches_.Snapshot()["quantize_int8"], 1u);
}

TEST_F(Int8CudaTest, DequantizeGivesTheCpusBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t k : {1, 65, 1000}) {
      const std::int64_t n = 33;
      const std::vector<std::int8_t> codes = support::CodeVector(1, n * k);
      const std::vector<float> scale = support::NormalVector(2, n);
      std::vector<std::uint8_t> want(static_cast<std::size_t>(n * k * SizeOf(dtype)));
      ASSERT_TRUE(DequantizeInt8({MakeConstMatrix(codes.data(), DType::kI8, n, k), scale.data(),
                                  MakeMatrix(want.data(), dtype, n, k)},
                                 CpuStream(Isa::kPlain))
                      .ok());
      DeviceBytes device_codes(*context_, codes), device_scale(*context_, scale);
      DeviceBytes out(*context_, static_cast<std::int64_t>(want.size()));
      const absl::Status status = DequantizeInt8({MakeConstMatrix(device_codes.As(), DType::kI8, n, k),
                                                  device_scale.As<float>(), MakeMatrix(out.As(), dtype, n, k)},
                                                 stream_);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(out.Equals(want.data())) << k;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
