// Compares the CUDA paths of the NF4 ops with the plain CPU loops: codes and dequantized values bit for bit, products
// within the bound of an inner product.
#include <gtest/gtest.h>

#include "kernels/ops/matmul/matmul_nf4.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "kernels/ops/quantize/quantize_nf4.h"
#include "tests/support/cuda_fixture.h"
#include "tests/support/exact_product.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::DeviceBytes;

class Nf4CudaTest : public support::CudaTest {};

struct HostWeight {
  HostWeight(std::uint64_t seed, std::int64_t rows, std::int64_t k, std::int64_t block = kNf4Block)
      : codes(static_cast<std::size_t>(rows * Nf4RowBytes(k))),
        absmax(support::NormalVector(seed + 1, rows * Nf4RowBlocks(k, block), 0.05f)),
        rows(rows),
        k(k),
        block(block) {
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(support::Bits(seed, i));
    for (float& a : absmax) a = std::fabs(a);
  }
  Nf4Weight view() const { return {codes.data(), absmax.data(), rows, k, block}; }

  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;
  std::int64_t rows, k, block;
};

TEST_F(Nf4CudaTest, QuantizeGivesTheCpusBits) {
  for (const std::int64_t block : {64, 32, 128, 4096}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t rows : {1, 7, 300}) {
        for (const std::int64_t k : {1, 13, 63, 64, 65, 129, 1000, 5000}) {
          std::vector<float> x = support::NormalVector(static_cast<std::uint64_t>(k), rows * k);
          if (k == 64) std::fill(x.begin(), x.begin() + 64, 0.0f);  // a block of zeros
          if (k == 1) x[0] = 1e-45f;                                // in f32, 1 / absmax is infinite
          if (k == 1000) {  // absmax is 1, so the thresholds are exact ties between two codes
            std::fill(x.begin(), x.begin() + 64, 0.0f);
            std::copy(kNf4Thresholds.begin(), kNf4Thresholds.end(), x.begin());
            x[kNf4Thresholds.size()] = 1.0f;
          }
          const std::vector<std::uint8_t> bytes = support::ToBytes(x, dtype);
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * Nf4RowBytes(k)));
          std::vector<float> absmax(static_cast<std::size_t>(rows * Nf4RowBlocks(k, block)));
          ASSERT_TRUE(QuantizeNf4({MakeConstMatrix(bytes.data(), dtype, rows, k), codes.data(), absmax.data(), block},
                                  CpuStream(Isa::kPlain))
                          .ok());
          DeviceBytes device_x(*context_, bytes);
          DeviceBytes device_codes(*context_, static_cast<std::int64_t>(codes.size()));
          DeviceBytes device_absmax(*context_, static_cast<std::int64_t>(absmax.size() * 4));
          const absl::Status status = QuantizeNf4({MakeConstMatrix(device_x.As(), dtype, rows, k),
                                                   device_codes.As<std::uint8_t>(), device_absmax.As<float>(), block},
                                                  stream_);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(device_codes.Equals(codes.data())) << rows << "x" << k << " in " << block;
          EXPECT_TRUE(device_absmax.Equals(absmax.data())) << rows << "x" << k << " in " << block;
        }
      }
    }
  }
}

TEST_F(Nf4CudaTest, DequantizeGivesTheCpusBits) {
  for (const std::int64_t block : {64, 32, 128, 4096}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t rows : {1, 7, 300}) {
        for (const std::int64_t k : {1, 13, 63, 64, 65, 129, 576, 1000, 5000}) {
          const HostWeight w(3, rows, k, block);
          std::vector<std::uint8_t> want(static_cast<std::size_t>(rows * k * SizeOf(dtype)));
          ASSERT_TRUE(DequantizeNf4({w.view(), MakeMatrix(want.data(), dtype, rows, k)}, CpuStream(Isa::kPlain)).ok());
          DeviceBytes codes(*context_, w.codes), absmax(*context_, w.absmax);
          DeviceBytes out(*context_, static_cast<std::int64_t>(want.size()));
          const absl::Status status = DequantizeNf4(
              {{codes.As<std::uint8_t>(), absmax.As<float>(), rows, k, block}, MakeMatrix(out.As(), dtype, rows, k)},
              stream_);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(out.Equals(want.data())) << rows << "x" << k << " in " << block << " " << Name(dtype);
        }
      }
    }
  }
}

TEST_F(Nf4CudaTest, MatmulIsWithinTheBoundOfTheExactProduct) {
  for (const DType x_type : {DType::kF32, DType::kBF16}) {
    for (const DType y_type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t m : {1, 2, 3, 4, 5, 64, 129}) {
        for (const auto& [n, k] :
             {std::pair<std::int64_t, std::int64_t>{7, 13}, {9, 0}, {64, 576}, {33, 65}, {130, 1024}}) {
          // One to four rows, which a separate kernel multiplies, have blocks of 32, 64, 128 and 4096.
          const std::int64_t block = m == 4 ? kNf4LargestBlock : kNf4SmallestBlock << (m - 1) % 8;
          const HostWeight w(static_cast<std::uint64_t>(m * n), n, k, block);
          const bool with_bias = (m + n) % 2 == 0;
          const std::vector<float> bias = support::NormalVector(5, n);
          const std::vector<std::uint8_t> x = support::ToBytes(support::NormalVector(6, m * k), x_type);
          std::vector<std::uint8_t> rounded(static_cast<std::size_t>(n * k * SizeOf(x_type)));
          ASSERT_TRUE(DequantizeNf4({w.view(), MakeMatrix(rounded.data(), x_type, n, k)}, CpuStream(Isa::kPlain)).ok());
          const support::ExactProduct exact(MakeConstMatrix(x.data(), x_type, m, k),
                                            MakeConstMatrix(rounded.data(), x_type, n, k),
                                            with_bias ? bias.data() : nullptr, nullptr);
          DeviceBytes codes(*context_, w.codes), absmax(*context_, w.absmax), device_x(*context_, x);
          DeviceBytes device_bias(*context_, bias);
          DeviceBytes y(*context_, m * n * SizeOf(y_type));
          const absl::Status status = MatmulNf4({MakeConstMatrix(device_x.As(), x_type, m, k),
                                                 {codes.As<std::uint8_t>(), absmax.As<float>(), n, k, w.block},
                                                 with_bias ? device_bias.As<float>() : nullptr,
                                                 MakeMatrix(y.As(), y_type, m, n)},
                                                stream_);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(exact.Holds(MakeConstMatrix(y.Back(), y_type, m, n)))
              << m << "x" << n << "x" << k << " " << Name(x_type) << " to " << Name(y_type);
        }
      }
    }
  }
}

TEST_F(Nf4CudaTest, DequantizeCountsOneLaunch) {
  const HostWeight w(3, 4, 64);
  DeviceBytes codes(*context_, w.codes), absmax(*context_, w.absmax), out(*context_, 4 * 64 * 4);
  ASSERT_TRUE(
      DequantizeNf4({{codes.As<std::uint8_t>(), absmax.As<float>(), 4, 64}, MakeMatrix(out.As(), DType::kF32, 4, 64)},
                    stream_)
          .ok());
  EXPECT_EQ(launches_.Snapshot(), (std::map<std::string, std::uint64_t>{{"dequantize_nf4", 1}}));
}

}  // namespace
}  // namespace nibble::kernels
