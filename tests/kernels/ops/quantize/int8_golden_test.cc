// Compares every path of the int8 ops with values of independent programs: tests/golden/kernels/int8.txt.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_backward.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_transposed.h"
#include "tests/support/golden.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;

class Int8GoldenTest : public ::testing::Test {
 protected:
  const support::Golden golden_{"tests/golden/kernels/int8.txt"};
};

TEST_F(Int8GoldenTest, QuantizeInt8GivesNumpysBits) {
  const auto x = golden_.Get<float>("quantize.x");
  for (const Isa isa : support::Isas()) {
    for (const int max_outliers : {0, 2, 8}) {
      const std::string prefix = "quantize." + std::to_string(max_outliers) + ".";
      support::Int8Rows out(7, 150);
      ASSERT_TRUE(
          QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 7, 150), out.view(), max_outliers}, CpuStream(isa))
              .ok());
      const QuantizedRows q = out.view();
      const auto codes = golden_.Get<std::int8_t>(prefix + "codes");
      const auto scale = golden_.Get<float>(prefix + "scale"), value = golden_.Get<float>(prefix + "value");
      const auto count = golden_.Get<std::int32_t>(prefix + "count"),
                 index = golden_.Get<std::int32_t>(prefix + "index");
      for (std::size_t r = 0; r < 7; ++r) {
        EXPECT_TRUE(support::BytesEqual(q.codes + static_cast<std::int64_t>(r) * q.stride, &codes[r * 150], 150))
            << "row " << r;
        EXPECT_EQ(q.scale[r], scale[r]) << "row " << r;
        ASSERT_EQ(q.num_outliers[r], count[r]) << "row " << r;
        for (std::size_t i = 0; i < static_cast<std::size_t>(count[r]); ++i) {
          EXPECT_EQ(q.outlier_index[r * 16 + i], index[r * 16 + i]) << "row " << r;
          EXPECT_EQ(q.outlier_value[r * 16 + i], value[r * 16 + i]) << "row " << r;
        }
      }
    }
  }
}

TEST_F(Int8GoldenTest, QuantizeInt8TransposedGivesTorchaosBits) {
  constexpr std::int64_t kRows = 70, kCols = 37;
  const auto x = golden_.Get<float>("transposed.x");
  for (const bool per_tensor : {false, true}) {
    const std::string prefix = per_tensor ? "transposed.tensor." : "transposed.";
    const auto codes = golden_.Get<std::int8_t>(prefix + "codes");
    auto scale = golden_.Get<float>(prefix + "scale");
    if (per_tensor) scale.resize(kCols, scale[0]);
    for (const Isa isa : support::Isas()) {
      SCOPED_TRACE(testing::Message() << Name(isa) << (per_tensor ? " per tensor" : ""));
      support::Int8Rows out(kCols, kRows);
      const QuantizedRows q = out.view();
      QuantizeOptions how;
      how.per_tensor = per_tensor;
      ASSERT_TRUE(QuantizeInt8Transposed({.x = MakeConstMatrix(x.data(), DType::kF32, kRows, kCols),
                                          .scale = q.scale,
                                          .codes = q.codes,
                                          .stride = q.stride,
                                          .how = how},
                                         CpuStream(isa))
                      .ok());
      EXPECT_TRUE(support::BytesEqual(q.scale, scale.data(), kCols * 4));
      for (std::int64_t c = 0; c < kCols; ++c) {
        EXPECT_TRUE(support::BytesEqual(q.codes + c * q.stride, codes.data() + c * kRows, kRows)) << "column " << c;
      }
    }
  }
}

TEST_F(Int8GoldenTest, RmsNormAgreesWithLlamaRMSNorm) {
  const auto x = golden_.Get<float>("norm.x"), weight = golden_.Get<float>("norm.weight");
  const auto want = golden_.Get<float>("norm.y");
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(x.size());
    ASSERT_TRUE(RmsNorm({MakeConstMatrix(x.data(), DType::kF32, 5, 97), weight.data(), 1e-5f,
                         MakeMatrix(y.data(), DType::kF32, 5, 97), nullptr},
                        CpuStream(isa))
                    .ok());
    // Our norm and LlamaRMSNorm sum 97 squares in different orders and round a few more times.
    EXPECT_TRUE(support::AllWithin(y, {want.begin(), want.end()},
                                   [&](std::size_t i) { return 2 * support::Gamma(20) * std::fabs(want[i]); }));
  }
}

TEST_F(Int8GoldenTest, RmsNormBackwardAgreesWithAutograd) {
  const auto x = golden_.Get<float>("norm.x"), weight = golden_.Get<float>("norm.weight");
  const auto grad_y = golden_.Get<float>("norm.grad_y");
  const auto want = golden_.Get<double>("norm.grad_x");
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(x.size()), rstd(5), grad_x(x.size());
    const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, 5, 97);
    ASSERT_TRUE(
        RmsNorm({xm, weight.data(), 1e-5f, MakeMatrix(y.data(), DType::kF32, 5, 97), rstd.data()}, CpuStream(isa))
            .ok());
    ASSERT_TRUE(RmsNormBackward({xm, MakeConstMatrix(grad_y.data(), DType::kF32, 5, 97), weight.data(), rstd.data(),
                                 MakeMatrix(grad_x.data(), DType::kF32, 5, 97)},
                                CpuStream(isa))
                    .ok());
    EXPECT_TRUE(support::AllWithin(grad_x, want, [&](std::size_t i) {
      // The two terms may cancel: the bound follows the largest gradient of the row.
      double largest = 0;
      for (std::size_t k = 0; k < 97; ++k) largest = std::max(largest, std::fabs(want[i / 97 * 97 + k]));
      return support::Gamma(40) * largest;
    }));
  }
}

TEST_F(Int8GoldenTest, MatmulInt8GivesNumpysBits) {
  const auto x = golden_.Get<float>("matmul.x"), bias = golden_.Get<float>("matmul.bias");
  const auto want = golden_.Get<float>("matmul.y");
  const support::Int8Weight w(golden_.Get<std::int8_t>("matmul.w"), golden_.Get<float>("matmul.w_scale"), 37, 100);
  for (const Isa isa : support::Isas()) {
    support::Int8Rows rows(6, 100);
    std::vector<float> y(want.size());
    ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 6, 100), rows.view(), 8}, CpuStream(isa)).ok());
    ASSERT_TRUE(
        MatmulInt8({rows.view(), w.view(), bias.data(), MakeMatrix(y.data(), DType::kF32, 6, 37)}, CpuStream(isa))
            .ok());
    EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size() * 4)) << Name(isa);
  }
}

TEST_F(Int8GoldenTest, MatmulDenseLiesWithinTheBoundOfItsChain) {
  const auto x = golden_.Get<float>("dense.x"), w = golden_.Get<float>("dense.w");
  const auto want = golden_.Get<double>("dense.y"), sum_abs = golden_.Get<double>("dense.sum_abs");
  std::vector<float> panels(static_cast<std::size_t>(PackedDenseElements(19, 200)));
  PackDenseWeight(w.data(), DType::kF32, 19, 200, panels.data());
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(want.size());
    ASSERT_TRUE(MatmulDense({MakeConstMatrix(x.data(), DType::kF32, 3, 200),
                             {panels.data(), DType::kF32, 19, 200},
                             nullptr,
                             MakeMatrix(y.data(), DType::kF32, 3, 19)},
                            CpuStream(isa))
                    .ok());
    EXPECT_TRUE(support::AllWithin(y, want, [&](std::size_t i) { return support::DotBound(200, sum_abs[i]); }));
  }
}

}  // namespace
}  // namespace nibble::kernels
