// Compares BitNet's ops with values of independent programs: tests/golden/kernels/ternary.txt.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/elementwise/gated_mul_backward.h"
#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_backward.h"
#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_backward.h"
#include "kernels/ops/quantize/ternarize.h"
#include "kernels/ops/quantize/ternarize_backward.h"
#include "tests/support/golden.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"
#include "tests/support/ternary.h"

namespace nibble::kernels {
namespace {

using support::BytesEqual;
using support::CpuStream;

class TernaryGoldenTest : public ::testing::Test {
 protected:
  // Codes and scales of the rows NAME.x [M, 150], by every path, for every width, with one scale per row or for all.
  void ExpectRows(const std::string& name, RowScaling scaling) {
    const auto x = golden_.Get<float>(name + ".x");
    const auto num_rows = static_cast<std::int64_t>(x.size() / 150);
    const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, num_rows, 150);
    for (const Isa isa : support::Isas()) {
      for (const int bits : {4, 8, 16}) {
        for (const bool per_tensor : {false, true}) {
          const std::string prefix = name + "." + std::to_string(bits) + (per_tensor ? ".1." : ".0.");
          const auto want = golden_.Bytes(prefix + "codes");
          const auto scale = golden_.Get<float>(prefix + "scale");
          support::Int8Rows narrow(num_rows, 150);
          support::WideRows wide(num_rows, 150);
          const QuantizedRows q = bits == 16 ? wide.view() : narrow.view();
          const QuantizeOptions how = {
              .min_absmax = kBitNetMinAbsmax, .bits = bits, .per_tensor = per_tensor, .scaling = scaling};
          ASSERT_TRUE(QuantizeInt8({xm, q, 0, how}, CpuStream(isa)).ok());
          const std::int64_t bytes = bits == 16 ? 2 : 1;
          const void* codes = bits == 16 ? static_cast<const void*>(q.wide_codes) : q.codes;
          for (std::int64_t r = 0; r < num_rows; ++r) {
            EXPECT_TRUE(BytesEqual(static_cast<const std::uint8_t*>(codes) + r * q.stride * bytes,
                                   want.data() + r * 150 * bytes, static_cast<std::size_t>(150 * bytes)))
                << prefix << " row " << r << " " << Name(isa);
            EXPECT_EQ(q.scale[r], scale[static_cast<std::size_t>(r)]) << prefix << " row " << r;
          }
        }
      }
    }
  }

  const support::Golden golden_{"tests/golden/kernels/ternary.txt"};
};

TEST_F(TernaryGoldenTest, TernarizeGivesTheBitsOfBitNetsTrainingTips) {
  struct Case {
    const char* name;
    std::int64_t n, k;
    DType dtype;
  };
  for (const Case& c :
       {Case{"plain", 23, 45, DType::kF32}, Case{"seven", 7, 13, DType::kF32}, Case{"zero", 5, 16, DType::kF32},
        Case{"tiny", 6, 20, DType::kF32}, Case{"ties", 3, 32, DType::kF32}, Case{"wide", 9, 130, DType::kF32},
        Case{"narrow", 33, 64, DType::kBF16}, Case{"column", 40, 1, DType::kF32}}) {
    const std::string prefix = std::string("ternarise.") + c.name + ".";
    const auto w = golden_.Bytes(prefix + "w");
    const auto rows = golden_.Bytes(prefix + "rows");
    const auto codes = golden_.Get<std::int8_t>(prefix + "codes");
    const auto want = golden_.Get<float>(prefix + "dequantised");
    for (const Isa isa : support::Isas()) {
      std::vector<std::uint8_t> got_rows(rows.size()), tiles(static_cast<std::size_t>(PackedTernaryBytes(c.n, c.k)));
      std::vector<float> scale(static_cast<std::size_t>(c.n));
      ASSERT_TRUE(Ternarize({MakeConstMatrix(w.data(), c.dtype, c.n, c.k), scale.data(), got_rows.data(), tiles.data()},
                            CpuStream(isa))
                      .ok());
      EXPECT_EQ(scale, std::vector<float>(scale.size(), golden_.Get<float>(prefix + "scale")[0])) << c.name;
      EXPECT_EQ(got_rows, rows) << c.name << " " << Name(isa);
      PackedTernaryWeight packed{tiles.data(), nullptr, c.n, c.k, TernaryPaddedK(c.k)};
      std::vector<std::int8_t> got_codes(codes.size());
      ASSERT_TRUE(DequantizeTernary({packed, MakeMatrix(got_codes.data(), DType::kI8, c.n, c.k)}, CpuStream(isa)).ok());
      EXPECT_EQ(got_codes, codes) << c.name << " " << Name(isa);
      packed.scale = scale.data();
      std::vector<float> out(want.size());
      ASSERT_TRUE(DequantizeTernary({packed, MakeMatrix(out.data(), DType::kF32, c.n, c.k)}, CpuStream(isa)).ok());
      EXPECT_EQ(out, want) << c.name << " " << Name(isa);  // by value: torch gives -0 where the code is 0
    }
  }
}

TEST_F(TernaryGoldenTest, ActivationsOfEveryWidthGiveTorchsBits) { ExpectRows("activations", RowScaling::kNative); }

TEST_F(TernaryGoldenTest, ReciprocalScalesOfActivationsGiveTransformersBits) {
  ExpectRows("reciprocal", RowScaling::kReciprocal);
  // With native scales, some of these codes are different.
  const auto x = golden_.Get<float>("reciprocal.x");
  support::WideRows native(31, 150);
  const QuantizedRows q = native.view();
  ASSERT_TRUE(QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 31, 150), q, 0, {kBitNetMinAbsmax, 16}},
                           CpuStream(support::Isas().front()))
                  .ok());
  const auto codes = golden_.Get<std::int16_t>("reciprocal.16.0.codes");
  int others = 0;
  for (std::int64_t r = 0; r < 31; ++r) {
    for (std::int64_t k = 0; k < 150; ++k) {
      others += q.wide_codes[r * q.stride + k] != codes[static_cast<std::size_t>(r * 150 + k)] ? 1 : 0;
    }
  }
  EXPECT_GT(others, 0);
}

TEST_F(TernaryGoldenTest, ReciprocalScalesOfWeightsAreTransformersScales) {
  for (const char* name : {"plain", "seven", "zero", "tiny", "ties", "wide", "narrow", "column"}) {
    const float scale = golden_.Get<float>(std::string("ternarise.") + name + ".scale")[0];
    EXPECT_EQ(ReciprocalScale(scale), golden_.Get<float>(std::string("reciprocal.") + name + ".scale")[0]) << name;
  }
}

// 1 / ReciprocalScale(s) equals 1 / s, so codes and gradients are the same with both scales.
TEST(ReciprocalScaleTest, HasTheInverseOfTheScale) {
  EXPECT_EQ(ReciprocalScale(kTernaryMinScale), kTernaryMinScale);
  int others = 0, wrong = 0;
  for (std::uint32_t mantissa = 0; mantissa < (1u << 23); ++mantissa) {
    for (const std::uint32_t exponent : {111u, 127u, 130u}) {
      const float s = std::bit_cast<float>(exponent << 23 | mantissa), reciprocal = ReciprocalScale(s);
      wrong += 1.0f / reciprocal != 1.0f / s ? 1 : 0;
      others += reciprocal != s ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(others, 1 << 20);
}

TEST_F(TernaryGoldenTest, MatmulTernaryGivesNumpysBits) {
  const auto x = golden_.Get<float>("matmul.x"), w = golden_.Get<float>("matmul.w"),
             bias = golden_.Get<float>("matmul.bias");
  std::vector<std::uint8_t> tiles(static_cast<std::size_t>(PackedTernaryBytes(37, 100)));
  std::vector<float> scale(37);
  for (const Isa isa : support::Isas()) {
    ASSERT_TRUE(Ternarize({MakeConstMatrix(w.data(), DType::kF32, 37, 100), scale.data(), nullptr, tiles.data()},
                          CpuStream(isa))
                    .ok());
    const PackedTernaryWeight packed{tiles.data(), scale.data(), 37, 100, TernaryPaddedK(100)};
    for (const int bits : {4, 8, 16}) {
      const std::string prefix = "matmul." + std::to_string(bits);
      support::Int8Rows narrow(6, 100);
      support::WideRows wide(6, 100);
      const QuantizedRows q = bits == 16 ? wide.view() : narrow.view();
      ASSERT_TRUE(
          QuantizeInt8({MakeConstMatrix(x.data(), DType::kF32, 6, 100), q, 0, {kBitNetMinAbsmax, bits}}, CpuStream(isa))
              .ok());
      std::vector<float> y(6 * 37);
      ASSERT_TRUE(MatmulTernary({q, packed, nullptr, MakeMatrix(y.data(), DType::kF32, 6, 37)}, CpuStream(isa)).ok());
      EXPECT_TRUE(BytesEqual(y.data(), golden_.Bytes(prefix + ".y").data(), y.size() * 4)) << prefix << Name(isa);
      ASSERT_TRUE(
          MatmulTernary({q, packed, bias.data(), MakeMatrix(y.data(), DType::kF32, 6, 37)}, CpuStream(isa)).ok());
      EXPECT_TRUE(BytesEqual(y.data(), golden_.Bytes(prefix + ".y_bias").data(), y.size() * 4)) << prefix << Name(isa);
      std::vector<BF16> narrow_y(6 * 37);
      ASSERT_TRUE(
          MatmulTernary({q, packed, bias.data(), MakeMatrix(narrow_y.data(), DType::kBF16, 6, 37)}, CpuStream(isa))
              .ok());
      EXPECT_TRUE(BytesEqual(narrow_y.data(), golden_.Bytes(prefix + ".y_bf16").data(), y.size() * 2))
          << prefix << Name(isa);
    }
  }
}

TEST_F(TernaryGoldenTest, GatedMulGivesTransformersBitsAndAutogradsGradients) {
  const auto gate = golden_.Get<float>("relu2.gate"), up = golden_.Get<float>("relu2.up");
  const auto grad = golden_.Get<float>("relu2.grad_y");
  const auto want_gate = golden_.Get<double>("relu2.grad_gate"), want_up = golden_.Get<double>("relu2.grad_up");
  const auto in = [](const std::vector<float>& v) { return MakeConstMatrix(v.data(), DType::kF32, 5, 37); };
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(gate.size()), grad_gate(gate.size()), grad_up(gate.size());
    const auto out = [](std::vector<float>& v) { return MakeMatrix(v.data(), DType::kF32, 5, 37); };
    ASSERT_TRUE(GatedMul({Activation::kRelu2, in(gate), in(up), out(y)}, CpuStream(isa)).ok());
    EXPECT_EQ(y, golden_.Get<float>("relu2.y")) << Name(isa);
    ASSERT_TRUE(
        GatedMulBackward({Activation::kRelu2, in(gate), in(up), in(grad), out(grad_gate), out(grad_up)}, CpuStream(isa))
            .ok());
    const auto relative = [](const std::vector<double>& want) {
      return [&want](std::size_t i) { return support::Gamma(3) * std::fabs(want[i]); };
    };
    EXPECT_TRUE(support::AllWithin(grad_gate, want_gate, relative(want_gate))) << Name(isa);
    EXPECT_TRUE(support::AllWithin(grad_up, want_up, relative(want_up))) << Name(isa);
  }
}

TEST_F(TernaryGoldenTest, WeightGradientOfTheNormAgreesWithAutograd) {
  const auto x = golden_.Get<float>("norm.x"), weight = golden_.Get<float>("norm.weight");
  const auto grad = golden_.Get<float>("norm.grad_y");
  const auto want = golden_.Get<double>("norm.grad_weight");
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(x.size()), rstd(13), grad_x(x.size()), grad_weight(53);
    const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, 13, 53);
    ASSERT_TRUE(
        RmsNorm({xm, weight.data(), 1e-5f, MakeMatrix(y.data(), DType::kF32, 13, 53), rstd.data()}, CpuStream(isa))
            .ok());
    ASSERT_TRUE(RmsNormBackward({xm, MakeConstMatrix(grad.data(), DType::kF32, 13, 53), weight.data(), rstd.data(),
                                 MakeMatrix(grad_x.data(), DType::kF32, 13, 53), grad_weight.data()},
                                CpuStream(isa))
                    .ok());
    EXPECT_TRUE(support::AllWithin(grad_weight, want, [&](std::size_t k) {
      double sum = 0;  // sum of the magnitudes that the chain adds
      for (std::size_t r = 0; r < 13; ++r) sum += std::fabs(grad[r * 53 + k] * x[r * 53 + k] * rstd[r]);
      return support::Gamma(13 + 12) * sum;
    })) << Name(isa);
  }
}

TEST_F(TernaryGoldenTest, StraightThroughWeightGradientsAgreeWithAutograd) {
  for (const auto& [name, n, k] : {std::tuple{"plain", std::int64_t{19}, std::int64_t{70}},
                                   std::tuple{"tiny", std::int64_t{4}, std::int64_t{12}}}) {
    const std::string prefix = std::string("weight_ste.") + name + ".";
    const auto w = golden_.Get<float>(prefix + "w"), grad = golden_.Get<float>(prefix + "grad_y");
    const float scale = golden_.Get<float>(prefix + "scale")[0];
    double largest = 0;
    for (const float g : grad) largest = std::max(largest, static_cast<double>(std::fabs(g)));
    for (const Isa isa : support::Isas()) {
      for (const bool scale_grad : {false, true}) {
        for (const auto& [ste, ste_name] :
             {std::pair{Ste::kRoundOnly, "round_only"}, std::pair{Ste::kClipped, "clipped"},
              std::pair{Ste::kIdentity, "identity"}}) {
          std::vector<float> got(w.size());
          ASSERT_TRUE(TernarizeBackward({MakeConstMatrix(w.data(), DType::kF32, n, k), scale,
                                         MakeConstMatrix(grad.data(), DType::kF32, n, k), ste, scale_grad,
                                         MakeMatrix(got.data(), DType::kF32, n, k)},
                                        CpuStream(isa))
                          .ok());
          if (ste == Ste::kIdentity) {
            EXPECT_EQ(got, grad);
            continue;
          }
          const auto want = golden_.Get<double>(prefix + ste_name + (scale_grad ? ".1" : ".0"));
          // The path through the scale is a mean of n * k terms, each with at most two roundings of |g| |u|, |u| < 1.5.
          EXPECT_TRUE(support::AllWithin(got, want,
                                         [&](std::size_t i) {
                                           return support::Gamma(2) * std::fabs(want[i]) +
                                                  support::Gamma(6) * 2.5 * largest;
                                         }))
              << prefix << ste_name << scale_grad << " " << Name(isa);
        }
      }
    }
  }
}

TEST_F(TernaryGoldenTest, StraightThroughActivationGradientsAgreeWithAutograd) {
  const auto x = golden_.Get<float>("activation_ste.x"), grad = golden_.Get<float>("activation_ste.grad_y");
  const ConstMatrix xm = MakeConstMatrix(x.data(), DType::kF32, 6, 50),
                    gm = MakeConstMatrix(grad.data(), DType::kF32, 6, 50);
  for (const Isa isa : support::Isas()) {
    for (const int bits : {4, 8, 16}) {
      for (const bool per_tensor : {false, true}) {
        support::Int8Rows narrow(6, 50);
        support::WideRows wide(6, 50);
        const QuantizedRows q = bits == 16 ? wide.view() : narrow.view();
        const QuantizeOptions how{kBitNetMinAbsmax, bits, per_tensor};
        ASSERT_TRUE(QuantizeInt8({xm, q, 0, how}, CpuStream(isa)).ok());
        std::vector<float> got(x.size());
        const Matrix out = MakeMatrix(got.data(), DType::kF32, 6, 50);
        ASSERT_TRUE(QuantizeInt8Backward({xm, q, how, gm, Ste::kIdentity, true, out}, CpuStream(isa)).ok());
        EXPECT_EQ(got, grad);
        ASSERT_TRUE(QuantizeInt8Backward({xm, q, how, gm, Ste::kRoundOnly, false, out}, CpuStream(isa)).ok());
        EXPECT_EQ(got, grad);
        ASSERT_TRUE(QuantizeInt8Backward({xm, q, how, gm, Ste::kRoundOnly, true, out}, CpuStream(isa)).ok());
        const auto want = golden_.Get<double>("activation_ste." + std::to_string(bits) + (per_tensor ? ".1" : ".0"));
        // A term g (c - u) has an error of at most five roundings of |g u|; the sum and its division by the largest
        // code add two. A row's |u| divided by that code is |x| / absmax.
        std::vector<double> through_scale(6);
        for (std::size_t row = 0; row < 6; ++row) {
          for (std::size_t k = 0; k < 50; ++k) {
            const double scale = static_cast<double>(q.scale[row]) * MaxCode(bits);
            through_scale[row] += std::fabs(static_cast<double>(grad[row * 50 + k]) * x[row * 50 + k] / scale);
          }
        }
        const double all = std::accumulate(through_scale.begin(), through_scale.end(), 0.0);
        const auto bound = [&](std::size_t i) {
          return support::Gamma(2) * std::fabs(want[i]) +
                 support::Gamma(8) * (per_tensor ? all : through_scale[i / 50]);
        };
        EXPECT_TRUE(support::AllWithin(got, want, bound)) << bits << per_tensor << " " << Name(isa);
        EXPECT_FALSE(support::AllWithin(grad, want, bound)) << "the bound hides the path through the scale, " << bits;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
