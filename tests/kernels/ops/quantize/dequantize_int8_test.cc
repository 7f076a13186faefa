#include "kernels/ops/quantize/dequantize_int8.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

TEST(DequantizeInt8Test, EveryPathMultipliesEachCodeByItsRowsScale) {
  ThreadPool three(3);
  for (const std::int64_t cols : {0, 1, 15, 16, 17, 255, 576}) {
    for (const std::int64_t rows : {0, 1, 7, 33}) {
      std::vector<std::int8_t> codes = support::CodeVector(1, rows * (cols + 5));
      if (!codes.empty()) codes[0] = -128;  // a code that quantization never makes is valid too
      const std::vector<float> scale = support::NormalVector(2, rows);
      const ConstMatrix in{codes.data(), DType::kI8, rows, cols, cols + 5};
      for (const DType out : {DType::kF32, DType::kBF16}) {
        std::vector<float> values;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t k = 0; k < cols; ++k) {
            values.push_back(static_cast<float>(codes[static_cast<std::size_t>(r * (cols + 5) + k)]) *
                             scale[static_cast<std::size_t>(r)]);
          }
        }
        const auto want = support::ToBytes(values, out);
        for (const Isa isa : support::Isas()) {
          GuardedBytes y(rows * cols * SizeOf(out));
          ASSERT_TRUE(
              DequantizeInt8({in, scale.data(), MakeMatrix(y.data(), out, rows, cols)}, CpuStream(isa, &three)).ok());
          EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size())) << Name(isa) << " cols " << cols;
          EXPECT_TRUE(y.GuardsIntact());
        }
      }
    }
  }
}

TEST(DequantizeInt8Test, RejectsBadArguments) {
  std::vector<std::int8_t> codes(12);
  std::vector<float> scale(3), y(12);
  const ConstMatrix in = MakeConstMatrix(codes.data(), DType::kI8, 3, 4);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(DequantizeInt8({in, nullptr, MakeMatrix(y.data(), DType::kF32, 3, 4)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DequantizeInt8({in, scale.data(), MakeMatrix(y.data(), DType::kF32, 4, 3)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DequantizeInt8({MakeConstMatrix(codes.data(), DType::kU8, 3, 4), scale.data(),
                            MakeMatrix(y.data(), DType::kF32, 3, 4)},
                           stream)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
