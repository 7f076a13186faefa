#include "kernels/ops/quantize/double_quantize.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::BytesEqual;
using support::CpuStream;
using support::GuardedBytes;
using support::Isas;

struct Quantized {
  explicit Quantized(std::int64_t n, std::int64_t block = kDoubleQuantBlock)
      : codes(n), factor(DoubleQuantBlocks(n, block) * 4), offset(4) {}
  bool GuardsIntact() const { return codes.GuardsIntact() && factor.GuardsIntact() && offset.GuardsIntact(); }
  GuardedBytes codes, factor, offset;
};

Quantized Quantize(const std::vector<float>& absmax, const Stream& stream, std::int64_t block = kDoubleQuantBlock) {
  Quantized q(static_cast<std::int64_t>(absmax.size()), block);
  EXPECT_TRUE(DoubleQuantize({absmax.data(), static_cast<std::int64_t>(absmax.size()), q.codes.As<std::int8_t>(),
                              q.factor.As<float>(), q.offset.As<float>(), block},
                             stream)
                  .ok());
  EXPECT_TRUE(q.GuardsIntact());
  return q;
}

std::vector<float> Scales(std::uint64_t seed, std::int64_t n) {
  std::vector<float> scales = support::NormalVector(seed, n, 0.01f);
  for (float& s : scales) s = 0.05f + s;
  return scales;
}

TEST(DoubleQuantizeTest, EveryPathGivesTheBitsOfPlain) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 255, 256, 257, 512, 9000}) {
    const std::vector<float> scales = Scales(2, n);
    const Quantized want = Quantize(scales, CpuStream(Isa::kPlain));
    for (const Isa isa : Isas()) {
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const Quantized got = Quantize(scales, CpuStream(isa, &pool));
        EXPECT_TRUE(BytesEqual(got.codes.data(), want.codes.data(), want.codes.size())) << Name(isa) << " " << n;
        EXPECT_TRUE(BytesEqual(got.factor.data(), want.factor.data(), want.factor.size())) << Name(isa) << " " << n;
        EXPECT_TRUE(BytesEqual(got.offset.data(), want.offset.data(), 4)) << Name(isa) << " " << n;
      }
    }
  }
}

TEST(DoubleQuantizeTest, EveryPathGivesTheBitsOfPlainForEveryBlock) {
  const std::vector<float> scales = Scales(2, 9001);
  for (std::int64_t block = 32; block <= 4096; block *= 2) {
    const Quantized want = Quantize(scales, CpuStream(Isa::kPlain), block);
    for (const Isa isa : Isas()) {
      const Quantized got = Quantize(scales, CpuStream(isa), block);
      EXPECT_TRUE(BytesEqual(got.codes.data(), want.codes.data(), want.codes.size())) << Name(isa) << " " << block;
      EXPECT_TRUE(BytesEqual(got.factor.data(), want.factor.data(), want.factor.size())) << Name(isa) << " " << block;
    }
  }
}

TEST(DoubleQuantizeTest, FollowsTheFormula) {
  // Mean 4, so z is -3, 0, 1, 2 (exact): max|z| 3, factor 128/3, codes rne(z * factor).
  for (const Isa isa : Isas()) {
    const Quantized q = Quantize({1.0f, 4.0f, 5.0f, 6.0f}, CpuStream(isa));
    EXPECT_EQ(*q.offset.As<float>(), 4.0f);
    EXPECT_EQ(*q.factor.As<float>(), 128.0f / 3.0f);
    const std::int8_t want[] = {-128, 0, 43, 85};
    EXPECT_TRUE(BytesEqual(q.codes.data(), want, 4));
  }
}

TEST(DoubleQuantizeTest, TopOfTheRangeIsClampedAndTiesGoToEven) {
  // Mean 0: z = x, max 128, factor 1. 128 has no code: 127.
  for (const Isa isa : Isas()) {
    const Quantized q = Quantize({128.0f, -128.0f, 2.5f, -2.5f, 3.5f, -3.5f}, CpuStream(isa));
    const std::int8_t want[] = {127, -128, 2, -2, 4, -4};
    EXPECT_EQ(*q.factor.As<float>(), 1.0f);
    EXPECT_TRUE(BytesEqual(q.codes.data(), want, 6));
  }
}

TEST(DoubleQuantizeTest, EqualScalesGetFactorOneAndCodeZero) {
  for (const Isa isa : Isas()) {
    for (const float value : {0.0f, 0.03f, 1e-45f, 3e38f}) {
      const Quantized q = Quantize(std::vector<float>(300, value), CpuStream(isa));
      EXPECT_EQ(*q.offset.As<float>(), value);
      for (int b = 0; b < 2; ++b) EXPECT_EQ(q.factor.As<float>()[b], 1.0f);
      for (std::size_t i = 0; i < 300; ++i) EXPECT_EQ(q.codes.data()[i], 0);
    }
  }
}

TEST(DoubleQuantizeTest, DifferencesTooSmallForAFactorCountAsEqual) {
  for (const Isa isa : Isas()) {
    const Quantized q = Quantize({0.0f, 1e-44f, 0.0f}, CpuStream(isa));
    EXPECT_EQ(*q.factor.As<float>(), 1.0f);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(q.codes.data()[i], 0);
  }
}

TEST(DoubleQuantizeTest, RejectsNonFiniteValuesAndNamesTheirPlace) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> scales = Scales(1, 300);
    scales[257] = bad;
    Quantized q(300);
    const absl::Status status =
        DoubleQuantize({scales.data(), 300, q.codes.As<std::int8_t>(), q.factor.As<float>(), q.offset.As<float>()},
                       CpuStream(DetectIsa()));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("absmax[257]"), std::string_view::npos) << status;
  }
}

TEST(DoubleQuantizeTest, RejectsBadArguments) {
  const float absmax[1] = {1.0f};
  std::int8_t codes[1];
  float factor[1], offset[1];
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(DoubleQuantize({nullptr, 1, codes, factor, offset}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleQuantize({absmax, -1, codes, factor, offset}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleQuantize({absmax, 1, codes, factor, nullptr}, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DoubleQuantize({absmax, 1, codes, factor, offset, 100}, stream).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DoubleQuantizeTest, EqualsTorchao) {
  const support::Golden golden("tests/golden/kernels/nf4.txt");
  const std::vector<float> absmax = golden.Get<float>("double.absmax");
  ASSERT_EQ(absmax.size(), 512u);
  for (const Isa isa : Isas()) {
    const Quantized q = Quantize(absmax, CpuStream(isa));
    EXPECT_TRUE(BytesEqual(q.offset.data(), golden.Bytes("double.offset").data(), 4));
    EXPECT_TRUE(BytesEqual(q.factor.data(), golden.Bytes("double.factor").data(), 8));
    EXPECT_TRUE(BytesEqual(q.codes.data(), golden.Bytes("double.codes").data(), 512)) << Name(isa);
    for (const std::int64_t block : {32, 128}) {
      const std::string name = absl::StrCat("double", block);
      const Quantized other = Quantize(absmax, CpuStream(isa), block);
      EXPECT_TRUE(BytesEqual(other.factor.data(), golden.Bytes(name + ".factor").data(), other.factor.size()));
      EXPECT_TRUE(BytesEqual(other.codes.data(), golden.Bytes(name + ".codes").data(), 512)) << Name(isa) << block;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
