#include "kernels/ops/quantize/quantize_nf4.h"

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
  Quantized(std::int64_t rows, std::int64_t k, std::int64_t block = kNf4Block)
      : codes(rows * Nf4RowBytes(k)), absmax(rows * Nf4RowBlocks(k, block) * 4), block(block) {}
  GuardedBytes codes;
  GuardedBytes absmax;
  std::int64_t block;
};

absl::Status Quantize(const std::vector<float>& x, std::int64_t rows, std::int64_t k, DType dtype, const Stream& stream,
                      Quantized* out) {
  const std::vector<std::uint8_t> bytes = support::ToBytes(x, dtype);
  QuantizeNf4Args args{MakeConstMatrix(bytes.data(), dtype, rows, k), out->codes.data(), out->absmax.As<float>(),
                       out->block};
  absl::Status status = QuantizeNf4(args, stream);
  EXPECT_TRUE(out->codes.GuardsIntact() && out->absmax.GuardsIntact());
  return status;
}

unsigned Code(const Quantized& q, std::int64_t i) {
  const unsigned byte = q.codes.data()[i / 2];
  return i % 2 == 0 ? byte >> 4 : byte & 15u;
}

TEST(QuantizeNf4Test, EveryPathGivesTheBitsOfPlain) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t rows : {0, 1, 7, 40}) {
      for (const std::int64_t k : {1, 13, 31, 32, 33, 63, 64, 65, 129, 1000}) {
        std::vector<float> x = support::NormalVector(static_cast<std::uint64_t>(k), rows * k);
        for (std::size_t i = 0; i < x.size(); i += 5) x[i] *= 1e-3f;
        Quantized want(rows, k);
        ASSERT_TRUE(Quantize(x, rows, k, dtype, CpuStream(Isa::kPlain), &want).ok());
        for (const Isa isa : Isas()) {
          for (const int threads : {1, 2, 3}) {
            ThreadPool pool(threads);
            Quantized got(rows, k);
            ASSERT_TRUE(Quantize(x, rows, k, dtype, CpuStream(isa, &pool), &got).ok());
            EXPECT_TRUE(BytesEqual(got.codes.data(), want.codes.data(), want.codes.size())) << Name(isa) << " K " << k;
            EXPECT_TRUE(BytesEqual(got.absmax.data(), want.absmax.data(), want.absmax.size())) << Name(isa);
          }
        }
      }
    }
  }
}

TEST(QuantizeNf4Test, EveryPathGivesTheBitsOfPlainForEveryBlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (std::int64_t block = kNf4SmallestBlock; block <= kNf4LargestBlock; block *= 2) {
      for (const std::int64_t k : {13L, 32L, 65L, 100L, 1000L, 4096L, 4101L}) {
        const std::vector<float> x = support::NormalVector(static_cast<std::uint64_t>(k), 3 * k);
        Quantized want(3, k, block);
        ASSERT_TRUE(Quantize(x, 3, k, dtype, CpuStream(Isa::kPlain), &want).ok());
        for (const Isa isa : Isas()) {
          Quantized got(3, k, block);
          ASSERT_TRUE(Quantize(x, 3, k, dtype, CpuStream(isa), &got).ok());
          EXPECT_TRUE(BytesEqual(got.codes.data(), want.codes.data(), want.codes.size()))
              << Name(isa) << " " << k << " in " << block;
          EXPECT_TRUE(BytesEqual(got.absmax.data(), want.absmax.data(), want.absmax.size())) << Name(isa) << block;
        }
      }
    }
  }
}

// The mean distance of bitsandbytes' test_4bit_quant over standard normal numbers, by block.
TEST(QuantizeNf4Test, MeanErrorByBlockIsThatOfBitsandbytes) {
  struct {
    std::int64_t block;
    double mean;
  } const cases[] = {{32, .067746},  {64, .072798},   {128, .076831},  {256, .080337},
                     {512, .083547}, {1024, .086610}, {2048, .089592}, {4096, .092547}};
  const std::int64_t rows = 256, k = 4096;
  const std::vector<float> x = support::NormalVector(11, rows * k);
  for (const auto& c : cases) {
    Quantized q(rows, k, c.block);
    ASSERT_TRUE(Quantize(x, rows, k, DType::kF32, CpuStream(DetectIsa()), &q).ok());
    double sum = 0;
    for (std::int64_t i = 0; i < rows * k; ++i) {
      const float value = kNf4Book[Code(q, i)] * q.absmax.As<float>()[i / c.block];
      sum += std::fabs(static_cast<double>(value) - static_cast<double>(x[static_cast<std::size_t>(i)]));
    }
    // The standard error of the mean of a million distances is below 7e-5.
    EXPECT_NEAR(sum / static_cast<double>(rows * k), c.mean, 5e-4) << c.block;
  }
}

TEST(QuantizeNf4Test, CodeIsTheNearestOfTheBookAwayFromTies) {
  const std::vector<float> x = support::NormalVector(3, 4096);
  for (const Isa isa : Isas()) {
    Quantized q(64, 64);
    ASSERT_TRUE(Quantize(x, 64, 64, DType::kF32, CpuStream(isa), &q).ok());
    for (std::int64_t i = 0; i < 4096; ++i) {
      float absmax = 0;
      for (std::int64_t j = i / 64 * 64; j < i / 64 * 64 + 64; ++j) {
        absmax = std::max(absmax, std::fabs(x[static_cast<std::size_t>(j)]));
      }
      ASSERT_EQ(q.absmax.As<float>()[i / 64], absmax);
      const double v = static_cast<double>(x[static_cast<std::size_t>(i)]) / static_cast<double>(absmax);
      const double chosen = std::fabs(v - static_cast<double>(kNf4Book[Code(q, i)]));
      for (const float other : kNf4Book) EXPECT_LE(chosen, std::fabs(v - static_cast<double>(other)) + 1e-7);
    }
  }
}

TEST(QuantizeNf4Test, ExactTieGetsTheLowerCodeAndOneUlpAboveGetsTheHigher) {
  for (const Isa isa : Isas()) {
    for (std::size_t t = 0; t < kNf4Thresholds.size(); ++t) {
      // absmax 1, so that x * (1 / absmax) is x.
      const float tie = kNf4Thresholds[t];
      const std::vector<float> x = {1.0f, tie, std::nextafter(tie, 2.0f), std::nextafter(tie, -2.0f)};
      Quantized q(1, 4);
      ASSERT_TRUE(Quantize(x, 1, 4, DType::kF32, CpuStream(isa), &q).ok());
      EXPECT_EQ(Code(q, 0), 15u);
      EXPECT_EQ(Code(q, 1), t) << Name(isa);
      EXPECT_EQ(Code(q, 2), t + 1) << Name(isa);
      EXPECT_EQ(Code(q, 3), t) << Name(isa);
    }
  }
}

TEST(QuantizeNf4Test, EveryBookValueKeepsItsCode) {
  for (const Isa isa : Isas()) {
    for (const float scale : {1.0f, 0.037f, 1e-30f, 1e30f}) {
      std::vector<float> x(kNf4Book.begin(), kNf4Book.end());
      for (float& v : x) v *= scale;
      Quantized q(1, 16);
      ASSERT_TRUE(Quantize(x, 1, 16, DType::kF32, CpuStream(isa), &q).ok());
      for (std::int64_t i = 0; i < 16; ++i) EXPECT_EQ(Code(q, i), static_cast<unsigned>(i)) << Name(isa) << scale;
    }
  }
}

TEST(QuantizeNf4Test, ZeroBlockGetsCodeSevenAndAbsmaxZero) {
  for (const Isa isa : Isas()) {
    std::vector<float> x(129, 0.0f);
    x[70] = -0.0f;
    x[128] = 2.0f;
    Quantized q(1, 129);
    ASSERT_TRUE(Quantize(x, 1, 129, DType::kF32, CpuStream(isa), &q).ok());
    for (std::int64_t i = 0; i < 128; ++i) EXPECT_EQ(Code(q, i), 7u);
    EXPECT_EQ(Code(q, 128), 15u);
    EXPECT_EQ(Code(q, 129), 7u) << "the low nibble after an odd row's end";
    EXPECT_EQ(q.absmax.As<float>()[0], 0.0f);
    EXPECT_FALSE(std::signbit(q.absmax.As<float>()[1]));
    EXPECT_EQ(q.absmax.As<float>()[2], 2.0f);
  }
}

TEST(QuantizeNf4Test, DenormalBlocksStayDefined) {
  for (const Isa isa : Isas()) {
    // 1 / absmax is finite: ordinary codes.
    Quantized small(1, 2);
    ASSERT_TRUE(Quantize({1e-38f, -1e-38f}, 1, 2, DType::kF32, CpuStream(isa), &small).ok());
    EXPECT_EQ(small.codes.data()[0], 0xf0);
    // 1 / absmax is infinite: the codes of a zero block, but absmax is kept.
    const float tiny = std::numeric_limits<float>::denorm_min();
    Quantized smallest(1, 3);
    ASSERT_TRUE(Quantize({tiny, 0.0f, -tiny}, 1, 3, DType::kF32, CpuStream(isa), &smallest).ok());
    EXPECT_EQ(smallest.codes.data()[0], 0x77);
    EXPECT_EQ(smallest.codes.data()[1], 0x77);
    EXPECT_EQ(smallest.absmax.As<float>()[0], tiny);
  }
}

TEST(QuantizeNf4Test, RejectsNonFiniteValuesAndNamesTheirPlace) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Isa isa : Isas()) {
      for (const float bad : {inf, -inf, nan, -nan}) {
        for (const std::size_t place : {0u, 17u, 63u, 99u}) {
          std::vector<float> x = support::NormalVector(5, 200);
          x[100 + place] = bad;
          Quantized q(2, 100);
          const absl::Status status = Quantize(x, 2, 100, dtype, CpuStream(isa), &q);
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Name(isa) << " " << bad << " at " << place;
          EXPECT_NE(status.message().find(place < 64 ? "row 1, columns from 0" : "row 1, columns from 64"),
                    std::string_view::npos)
              << status;
        }
      }
    }
  }
}

TEST(QuantizeNf4Test, RowsMayBeStrided) {
  const std::vector<float> x = support::NormalVector(9, 3 * 80);
  Quantized want(1, 70);
  ASSERT_TRUE(Quantize({x.begin() + 80, x.begin() + 150}, 1, 70, DType::kF32, CpuStream(Isa::kPlain), &want).ok());
  Quantized got(3, 70);
  QuantizeNf4Args args{{x.data(), DType::kF32, 3, 70, 80}, got.codes.data(), got.absmax.As<float>()};
  ASSERT_TRUE(QuantizeNf4(args, CpuStream(DetectIsa())).ok());
  EXPECT_TRUE(BytesEqual(got.codes.data() + 35, want.codes.data(), 35));
}

TEST(QuantizeNf4Test, RejectsBlocksOfAnotherSize) {
  const std::vector<float> x(64);
  std::uint8_t codes[32];
  float absmax[4];
  for (const std::int64_t block : {-64, 0, 16, 63, 96, 8192}) {
    const absl::Status status =
        QuantizeNf4({MakeConstMatrix(x.data(), DType::kF32, 1, 64), codes, absmax, block}, CpuStream(Isa::kPlain));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << block;
    EXPECT_NE(status.message().find(absl::StrCat("block is ", block, ", wanted")), std::string_view::npos) << status;
  }
}

TEST(QuantizeNf4Test, RejectsBadArguments) {
  const std::vector<float> x(64);
  std::uint8_t codes[32];
  float absmax[1];
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(QuantizeNf4({MakeConstMatrix(x.data(), DType::kI8, 1, 64), codes, absmax}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeNf4({{x.data(), DType::kF32, 1, 64, 63}, codes, absmax}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeNf4({MakeConstMatrix(nullptr, DType::kF32, 1, 64), codes, absmax}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeNf4({MakeConstMatrix(x.data(), DType::kF32, 1, 64), nullptr, absmax}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeNf4({MakeConstMatrix(x.data(), DType::kF32, -1, 64), codes, absmax}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

// Golden: bitsandbytes. It uses the same formula for whole blocks, ties included, but divides the tail of a row by its
// absmax. The values of the golden's tail are not near ties, so the codes are equal (make_kernel_golden_nf4.py).
TEST(QuantizeNf4Test, EqualsBitsandbytes) {
  const support::Golden golden("tests/golden/kernels/nf4.txt");
  struct {
    const char* name;
    std::int64_t rows, k;
    DType dtype;
    std::int64_t block = kNf4Block;
  } const cases[] = {{"weight", 6, 192, DType::kF32},        {"weight_bf16", 3, 128, DType::kBF16},
                     {"ties", 1, 64, DType::kF32},           {"zeros", 1, 128, DType::kF32},
                     {"tail", 1, 100, DType::kF32},          {"block32", 2, 64, DType::kF32, 32},
                     {"block128", 2, 256, DType::kF32, 128}, {"block256", 2, 512, DType::kF32, 256}};
  for (const auto& c : cases) {
    const std::string name = c.name;
    for (const Isa isa : Isas()) {
      Quantized q(c.rows, c.k, c.block);
      const std::vector<std::uint8_t>& x = golden.Bytes(name + ".x");
      ASSERT_EQ(static_cast<std::int64_t>(x.size()), c.rows * c.k * SizeOf(c.dtype));
      ASSERT_TRUE(
          QuantizeNf4({MakeConstMatrix(x.data(), c.dtype, c.rows, c.k), q.codes.data(), q.absmax.As<float>(), c.block},
                      CpuStream(isa))
              .ok());
      EXPECT_TRUE(BytesEqual(q.codes.data(), golden.Bytes(name + ".codes").data(), q.codes.size()))
          << name << Name(isa);
      EXPECT_TRUE(BytesEqual(q.absmax.data(), golden.Bytes(name + ".absmax").data(), q.absmax.size())) << name;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
