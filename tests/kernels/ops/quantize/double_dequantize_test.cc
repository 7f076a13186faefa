#include "kernels/ops/quantize/double_dequantize.h"

#include <gtest/gtest.h>

#include "kernels/ops/quantize/double_quantize.h"
#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;
using support::Isas;

TEST(DoubleDequantizeTest, EveryPathRoundsTwice) {
  for (const auto& [n, block] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 256},
                                                                                   {1, 256},
                                                                                   {15, 256},
                                                                                   {16, 256},
                                                                                   {17, 256},
                                                                                   {255, 256},
                                                                                   {256, 256},
                                                                                   {257, 256},
                                                                                   {9000, 256},
                                                                                   {9001, 32},
                                                                                   {9001, 64},
                                                                                   {9001, 1024},
                                                                                   {9001, 4096}}) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(support::Bits(1, i));
    std::vector<float> factor = support::NormalVector(7, DoubleQuantBlocks(n, block), 900.0f);
    const float offset = 0.0312345f;
    for (const Isa isa : Isas()) {
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        GuardedBytes out(n * 4);
        ASSERT_TRUE(
            DoubleDequantize({codes.data(), factor.data(), offset, n, out.As<float>(), block}, CpuStream(isa, &pool))
                .ok());
        EXPECT_TRUE(out.GuardsIntact());
        for (std::size_t i = 0; i < codes.size(); ++i) {
          const float quotient = static_cast<float>(codes[i]) / factor[i / static_cast<std::size_t>(block)];
          ASSERT_EQ(out.As<float>()[i], quotient + offset) << Name(isa) << " " << i;
        }
      }
    }
  }
}

// The bound is half a step of the codes; docs/numerics.md 4 has the relative errors that follow.
TEST(DoubleDequantizeTest, RoundTripKeepsScalesWithinHalfAStep) {
  const std::int64_t n = 1000;
  std::vector<float> absmax = support::NormalVector(6, n, 0.005f);
  for (float& a : absmax) a = 0.05f + a;
  std::vector<std::int8_t> codes(n);
  std::vector<float> factor(static_cast<std::size_t>(DoubleQuantBlocks(n, kDoubleQuantBlock))), out(n);
  float offset = 0;
  const Stream stream = CpuStream(DetectIsa());
  ASSERT_TRUE(DoubleQuantize({absmax.data(), n, codes.data(), factor.data(), &offset}, stream).ok());
  ASSERT_TRUE(DoubleDequantize({codes.data(), factor.data(), offset, n, out.data()}, stream).ok());
  for (std::size_t i = 0; i < absmax.size(); ++i) {
    const float step = 1.0f / factor[i / 256];
    const float slack = codes[i] == 127 ? 1.01f : 0.51f;  // the top value loses up to a whole step to the clamp
    EXPECT_LE(std::fabs(out[i] - absmax[i]), slack * step) << i;
  }
}

TEST(DoubleDequantizeTest, RejectsBadArguments) {
  const std::int8_t codes[1] = {1};
  const float factor[1] = {1.0f};
  float out[1];
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(DoubleDequantize({nullptr, factor, 0, 1, out}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleDequantize({codes, factor, 0, 1, nullptr}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleDequantize({codes, factor, 0, -1, out}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleDequantize({codes, factor, 0, 1, out, 0}, stream).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DoubleDequantizeTest, EqualsTorchao) {
  const support::Golden golden("tests/golden/kernels/nf4.txt");
  const std::vector<std::int8_t> codes = golden.Get<std::int8_t>("double.codes");
  const std::vector<float> factor = golden.Get<float>("double.factor");
  ASSERT_EQ(codes.size(), 512u);
  for (const Isa isa : Isas()) {
    GuardedBytes out(512 * 4);
    ASSERT_TRUE(
        DoubleDequantize({codes.data(), factor.data(), golden.Get<float>("double.offset")[0], 512, out.As<float>()},
                         CpuStream(isa))
            .ok());
    EXPECT_TRUE(support::BytesEqual(out.data(), golden.Bytes("double.out").data(), out.size())) << Name(isa);
    for (const std::int64_t block : {32, 128}) {
      const std::string name = absl::StrCat("double", block);
      const std::vector<std::int8_t> other = golden.Get<std::int8_t>(name + ".codes");
      const std::vector<float> factors = golden.Get<float>(name + ".factor");
      ASSERT_TRUE(DoubleDequantize({other.data(), factors.data(), golden.Get<float>("double.offset")[0], 512,
                                    out.As<float>(), block},
                                   CpuStream(isa))
                      .ok());
      EXPECT_TRUE(support::BytesEqual(out.data(), golden.Bytes(name + ".out").data(), out.size())) << name;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
