#include "kernels/ops/quantize/dequantize_nf4.h"

#include <gtest/gtest.h>

#include "kernels/ops/quantize/quantize_nf4.h"
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

// Buffers of exactly the size of the weight, so that a sanitizer sees a read past its end.
struct Weight {
  Weight(std::uint64_t seed, std::int64_t rows, std::int64_t k, std::int64_t block = kNf4Block) {
    codes.resize(static_cast<std::size_t>(rows * Nf4RowBytes(k)));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(support::Bits(seed, i));
    absmax = support::NormalVector(seed, rows * Nf4RowBlocks(k, block));
    for (float& a : absmax) a = std::fabs(a);
    view = {codes.data(), absmax.data(), rows, k, block};
  }
  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;
  Nf4Weight view;
};

GuardedBytes Dequantize(const Nf4Weight& w, DType dtype, const Stream& stream) {
  GuardedBytes out(w.rows * w.cols * SizeOf(dtype));
  EXPECT_TRUE(DequantizeNf4({w, MakeMatrix(out.data(), dtype, w.rows, w.cols)}, stream).ok());
  EXPECT_TRUE(out.GuardsIntact());
  return out;
}

TEST(DequantizeNf4Test, EveryPathGivesTheBitsOfPlain) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t rows : {0, 1, 7, 40}) {
      for (const std::int64_t k : {1, 13, 31, 32, 33, 63, 64, 65, 129, 1000}) {
        const Weight w(static_cast<std::uint64_t>(k), rows, k);
        const GuardedBytes want = Dequantize(w.view, dtype, CpuStream(Isa::kPlain));
        for (const Isa isa : Isas()) {
          for (const int threads : {1, 2, 3}) {
            ThreadPool pool(threads);
            const GuardedBytes got = Dequantize(w.view, dtype, CpuStream(isa, &pool));
            EXPECT_TRUE(BytesEqual(got.data(), want.data(), want.size())) << Name(isa) << " " << rows << "x" << k;
          }
        }
      }
    }
  }
}

TEST(DequantizeNf4Test, EveryPathGivesTheBitsOfPlainForEveryBlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (std::int64_t block = kNf4SmallestBlock; block <= kNf4LargestBlock; block *= 2) {
      for (const std::int64_t k : {13L, 32L, 65L, 100L, 1000L, 4096L, 4100L}) {
        const Weight w(static_cast<std::uint64_t>(k), 3, k, block);
        const GuardedBytes want = Dequantize(w.view, dtype, CpuStream(Isa::kPlain));
        for (const Isa isa : Isas()) {
          const GuardedBytes got = Dequantize(w.view, dtype, CpuStream(isa));
          EXPECT_TRUE(BytesEqual(got.data(), want.data(), want.size())) << Name(isa) << " " << k << " in " << block;
        }
      }
    }
  }
}

TEST(DequantizeNf4Test, RoundsTheF32ProductToTheTypeOfTheOutput) {
  const Weight w(1, 3, 129);
  const GuardedBytes f32 = Dequantize(w.view, DType::kF32, CpuStream(Isa::kPlain));
  const GuardedBytes bf16 = Dequantize(w.view, DType::kBF16, CpuStream(Isa::kPlain));
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t i = 0; i < 129; ++i) {
      const unsigned byte = w.codes[static_cast<std::size_t>(r * 65 + i / 2)];
      const float value =
          kNf4Book[i % 2 == 0 ? byte >> 4 : byte & 15u] * w.absmax[static_cast<std::size_t>(r * 3 + i / 64)];
      EXPECT_EQ(f32.As<float>()[r * 129 + i], value);
      EXPECT_EQ(bf16.As<BF16>()[r * 129 + i].bits, ToBF16(value).bits);
    }
  }
}

// Every code with every kind of scale, including signed zeros, denormals and overflow when rounding to bf16.
TEST(DequantizeNf4Test, ExtremeScalesRoundAlike) {
  const std::vector<float> scales = {0.0f, 1e-45f, 1e-40f, 1.17549435e-38f, 1e-20f, 1.0f, 3.0e38f, 3.4028235e38f};
  std::vector<std::uint8_t> codes(scales.size() * 32);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 16 % 256 + (i + 3) % 16);
  const Nf4Weight w{codes.data(), scales.data(), static_cast<std::int64_t>(scales.size()), 64};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GuardedBytes want = Dequantize(w, dtype, CpuStream(Isa::kPlain));
    for (const Isa isa : Isas()) {
      const GuardedBytes got = Dequantize(w, dtype, CpuStream(isa));
      EXPECT_TRUE(BytesEqual(got.data(), want.data(), want.size())) << Name(isa);
    }
  }
}

// The widest gap of the book is between -1 and -0.696: no element moves by more than half that gap times absmax.
TEST(DequantizeNf4Test, RoundTripStaysWithinHalfAGap) {
  const std::int64_t rows = 5, k = 200;
  const std::vector<float> x = support::NormalVector(4, rows * k);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * Nf4RowBytes(k)));
  std::vector<float> absmax(static_cast<std::size_t>(rows * Nf4RowBlocks(k, kNf4Block)));
  ASSERT_TRUE(QuantizeNf4({MakeConstMatrix(x.data(), DType::kF32, rows, k), codes.data(), absmax.data()},
                          CpuStream(DetectIsa()))
                  .ok());
  const GuardedBytes out = Dequantize({codes.data(), absmax.data(), rows, k}, DType::kF32, CpuStream(DetectIsa()));
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const float scale = absmax[static_cast<std::size_t>(i / k * Nf4RowBlocks(k, kNf4Block) + i % k / 64)];
    EXPECT_LE(std::fabs(out.As<float>()[i] - x[static_cast<std::size_t>(i)]), 0.1520f * scale) << i;
  }
}

TEST(DequantizeNf4Test, OutputRowsMayBeStrided) {
  const Weight w(8, 3, 70);
  const GuardedBytes want = Dequantize(w.view, DType::kBF16, CpuStream(Isa::kPlain));
  for (const Isa isa : Isas()) {
    GuardedBytes out(3 * 80 * 2);
    ASSERT_TRUE(DequantizeNf4({w.view, {out.data(), DType::kBF16, 3, 70, 80}}, CpuStream(isa)).ok());
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(BytesEqual(out.data() + r * 160, want.data() + r * 140, 140));
      for (std::size_t i = 140; i < 160; ++i) EXPECT_EQ(out.data()[r * 160 + i], GuardedBytes::kFill);
    }
  }
}

TEST(DequantizeNf4Test, RejectsBadArguments) {
  const Weight w(8, 3, 70);
  std::vector<float> out(210);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(DequantizeNf4({w.view, MakeMatrix(out.data(), DType::kF32, 3, 69)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DequantizeNf4({w.view, MakeMatrix(out.data(), DType::kI32, 3, 70)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      DequantizeNf4({{w.codes.data(), nullptr, 3, 70}, MakeMatrix(out.data(), DType::kF32, 3, 70)}, stream).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      DequantizeNf4({{w.codes.data(), w.absmax.data(), -3, 70}, MakeMatrix(out.data(), DType::kF32, -3, 70)}, stream)
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(DequantizeNf4Test, RejectsBlocksOfAnotherSize) {
  Weight w(8, 3, 70);
  std::vector<float> out(210);
  for (const std::int64_t block : {-64, 0, 16, 63, 96, 8192}) {
    w.view.block = block;
    const absl::Status status =
        DequantizeNf4({w.view, MakeMatrix(out.data(), DType::kF32, 3, 70)}, CpuStream(Isa::kPlain));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << block;
    EXPECT_NE(status.message().find(absl::StrCat("w.block is ", block, ", wanted")), std::string_view::npos) << status;
  }
}

TEST(DequantizeNf4Test, EachCallIsCountedOnce) {
  const Weight w(8, 3, 70);
  std::vector<float> out(210);
  LaunchCounter launches;
  Stream stream = CpuStream(DetectIsa());
  stream.launches = &launches;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(DequantizeNf4({w.view, MakeMatrix(out.data(), DType::kF32, 3, 70)}, stream).ok());
  }
  EXPECT_EQ(launches.Snapshot(), (std::map<std::string, std::uint64_t>{{"dequantize_nf4", 3}}));
}

TEST(DequantizeNf4Test, EqualsBitsandbytes) {
  const support::Golden golden("tests/golden/kernels/nf4.txt");
  struct {
    const char* name;
    std::int64_t rows, k;
    std::int64_t block = kNf4Block;
  } const cases[] = {{"weight", 6, 192}, {"weight_bf16", 3, 128}, {"ties", 1, 64},           {"zeros", 1, 128},
                     {"tail", 1, 100},   {"block32", 2, 64, 32},  {"block128", 2, 256, 128}, {"block256", 2, 512, 256}};
  for (const auto& c : cases) {
    const std::string name = c.name;
    const std::vector<float> absmax = golden.Get<float>(name + ".absmax");
    const Nf4Weight w{golden.Bytes(name + ".codes").data(), absmax.data(), c.rows, c.k, c.block};
    for (const Isa isa : Isas()) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const std::vector<std::uint8_t>& want = golden.Bytes(name + (dtype == DType::kF32 ? ".f32" : ".bf16"));
        const GuardedBytes got = Dequantize(w, dtype, CpuStream(isa));
        ASSERT_EQ(got.size(), want.size());
        EXPECT_TRUE(BytesEqual(got.data(), want.data(), want.size())) << name << " " << Name(isa) << " " << Name(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
