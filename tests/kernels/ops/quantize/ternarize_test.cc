#include "kernels/ops/quantize/ternarize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/ternarize_backward.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/ternary.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

struct Outputs {
  Outputs(std::int64_t n, std::int64_t k)
      : scale(4 * n), rows(n * TernaryRowBytes(k)), tiles(PackedTernaryBytes(n, k)) {}
  ::testing::AssertionResult Same(const Outputs& want) const {
    for (const auto& [mine, other] :
         {std::pair{&scale, &want.scale}, std::pair{&rows, &want.rows}, std::pair{&tiles, &want.tiles}}) {
      if (auto equal = support::BytesEqual(mine->data(), other->data(), mine->size()); !equal) return equal;
    }
    return ::testing::AssertionSuccess();
  }
  bool GuardsIntact() const { return scale.GuardsIntact() && rows.GuardsIntact() && tiles.GuardsIntact(); }
  GuardedBytes scale, rows, tiles;
};

TEST(TernarizeTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const std::int64_t k : {1, 3, 4, 13, 15, 16, 17, 63, 64, 65, 100, 576}) {
    for (const std::int64_t n : {0, 1, 7, 15, 16, 17, 45}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const auto w = support::ToBytes(support::NormalVector(static_cast<std::uint64_t>(n * k), n * k, 0.03f), dtype);
        const ConstMatrix wm = MakeConstMatrix(w.data(), dtype, n, k);
        Outputs want(n, k);
        ASSERT_TRUE(
            Ternarize({wm, want.scale.As<float>(), want.rows.data(), want.tiles.data()}, CpuStream(Isa::kPlain)).ok());
        for (const Isa isa : support::Isas()) {
          for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
            Outputs got(n, k), apart(n, k);
            ASSERT_TRUE(
                Ternarize({wm, got.scale.As<float>(), got.rows.data(), got.tiles.data()}, CpuStream(isa, pool)).ok());
            EXPECT_TRUE(got.Same(want)) << Name(isa) << " [" << n << ", " << k << "] " << Name(dtype);
            EXPECT_TRUE(got.GuardsIntact());
            ASSERT_TRUE(
                Ternarize({wm, apart.scale.As<float>(), apart.rows.data(), nullptr}, CpuStream(isa, pool)).ok());
            ASSERT_TRUE(
                Ternarize({wm, apart.scale.As<float>(), nullptr, apart.tiles.data()}, CpuStream(isa, pool)).ok());
            EXPECT_TRUE(apart.Same(want)) << Name(isa) << " one output at a time";
          }
        }
      }
    }
  }
}

TEST(TernarizeTest, NanAndInfinityReachTheScale) {
  for (const Isa isa : support::Isas()) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> w = support::NormalVector(1, 3 * 40), scale(3);
      w[77] = bad;
      std::vector<std::uint8_t> rows(30);
      ASSERT_TRUE(
          Ternarize({MakeConstMatrix(w.data(), DType::kF32, 3, 40), scale.data(), rows.data(), nullptr}, CpuStream(isa))
              .ok());
      EXPECT_FALSE(std::isfinite(scale[0])) << Name(isa);
    }
  }
}

// docs/numerics.md 2: codes and scale are made once, because the mean magnitude of -s, 0 and s is s times the share of
// non-zeros.
TEST(TernarizeTest, TernarizingTwiceWouldShrinkTheScale) {
  const std::vector<float> w = support::NormalVector(3, 64 * 64);
  std::vector<float> scale(64), again(64), dequantized(64 * 64);
  std::vector<std::uint8_t> tiles(static_cast<std::size_t>(PackedTernaryBytes(64, 64)));
  const Stream stream = CpuStream(support::Isas().back());
  ASSERT_TRUE(
      Ternarize({MakeConstMatrix(w.data(), DType::kF32, 64, 64), scale.data(), nullptr, tiles.data()}, stream).ok());
  const PackedTernaryWeight packed{tiles.data(), scale.data(), 64, 64, 64};
  ASSERT_TRUE(DequantizeTernary({packed, MakeMatrix(dequantized.data(), DType::kF32, 64, 64)}, stream).ok());
  ASSERT_TRUE(
      Ternarize({MakeConstMatrix(dequantized.data(), DType::kF32, 64, 64), again.data(), nullptr, tiles.data()}, stream)
          .ok());
  EXPECT_LT(again[0], 0.8f * scale[0]);
}

TEST(TernarizeTest, RejectsBadArguments) {
  std::vector<float> w(12), scale(3);
  std::vector<std::uint8_t> rows(3);
  const Stream stream = CpuStream(Isa::kPlain);
  const auto code = [&](ConstMatrix m, float* s, std::uint8_t* r) {
    return Ternarize({m, s, r, nullptr}, stream).code();
  };
  const ConstMatrix good = MakeConstMatrix(w.data(), DType::kF32, 3, 4);
  EXPECT_EQ(code(good, scale.data(), rows.data()), absl::StatusCode::kOk);
  EXPECT_EQ(code(MakeConstMatrix(w.data(), DType::kF16, 3, 4), scale.data(), rows.data()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeConstMatrix(w.data(), DType::kF32, 3, 0), scale.data(), rows.data()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeConstMatrix(nullptr, DType::kF32, 3, 4), scale.data(), rows.data()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(good, nullptr, rows.data()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(good, scale.data(), nullptr), absl::StatusCode::kInvalidArgument);
}

TEST(TernaryFormatTest, LayoutsHoldTheSameCodes) {
  for (const std::int64_t k : {1, 4, 5, 16, 17, 63, 64, 65, 130}) {
    for (const std::int64_t n : {0, 1, 16, 33}) {
      const std::vector<std::int8_t> codes = support::TernaryVector(static_cast<std::uint64_t>(k), n * k);
      std::vector<std::uint8_t> rows(static_cast<std::size_t>(n * TernaryRowBytes(k))), back(rows.size());
      std::vector<std::uint8_t> tiles(static_cast<std::size_t>(PackedTernaryBytes(n, k)));
      std::vector<std::int8_t> codes_back(codes.size());
      ASSERT_TRUE(TernaryCodesToRows(codes.data(), n, k, rows.data()));
      ASSERT_TRUE(TernaryRowsToTiles(rows.data(), n, k, tiles.data()));
      TernaryTilesToRows(tiles.data(), n, k, back.data());
      EXPECT_EQ(back, rows);
      ASSERT_TRUE(TernaryRowsToCodes(rows.data(), n, k, codes_back.data()));
      EXPECT_EQ(codes_back, codes);
      const PackedTernaryWeight packed{tiles.data(), nullptr, n, k, TernaryPaddedK(k)};
      std::size_t outside = 0;  // elements past N or K hold code 0
      for (std::int64_t r = 0; r < RoundUp(n, 16); ++r) {
        for (std::int64_t i = 0; i < packed.padded_k; ++i) {
          const int want = r < n && i < k ? codes[static_cast<std::size_t>(r * k + i)] : 0;
          outside += TernaryCode(packed, r, i) != want;
        }
      }
      EXPECT_EQ(outside, 0u) << "[" << n << ", " << k << "]";
    }
  }
}

TEST(TernaryFormatTest, RejectsInvalidCodes) {
  std::uint8_t rows[2];
  std::int8_t codes[5] = {1, 0, -1, 2, 0};
  EXPECT_FALSE(TernaryCodesToRows(codes, 1, 5, rows));
  codes[3] = -2;
  EXPECT_FALSE(TernaryCodesToRows(codes, 1, 5, rows));
  std::uint8_t tiles[1024];
  rows[0] = 0x55;
  rows[1] = 0x01;
  EXPECT_TRUE(TernaryRowsToTiles(rows, 1, 5, tiles));
  rows[0] = 0x5d;  // a 3
  EXPECT_FALSE(TernaryRowsToTiles(rows, 1, 5, tiles));
  EXPECT_FALSE(TernaryRowsToCodes(rows, 1, 5, codes));
  rows[0] = 0x55;
  rows[1] = 0x05;  // a bit past K
  EXPECT_FALSE(TernaryRowsToTiles(rows, 1, 5, tiles));
  EXPECT_FALSE(TernaryRowsToCodes(rows, 1, 5, codes));
}

TEST(DequantizeTernaryTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool three(3);
  for (const std::int64_t k : {1, 13, 16, 17, 64, 100}) {
    for (const std::int64_t n : {0, 1, 17, 40}) {
      const support::TernaryWeight w(support::TernaryVector(5, n * k), support::NormalVector(6, n), n, k);
      for (const DType out : {DType::kF32, DType::kBF16, DType::kI8}) {
        for (const bool scaled : {false, true}) {
          if (scaled && out == DType::kI8) continue;
          PackedTernaryWeight view = w.view();
          if (!scaled) view.scale = nullptr;
          GuardedBytes want(n * k * SizeOf(out));
          ASSERT_TRUE(DequantizeTernary({view, MakeMatrix(want.data(), out, n, k)}, CpuStream(Isa::kPlain)).ok());
          for (const Isa isa : support::Isas()) {
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &three}) {
              GuardedBytes got(n * k * SizeOf(out));
              ASSERT_TRUE(DequantizeTernary({view, MakeMatrix(got.data(), out, n, k)}, CpuStream(isa, pool)).ok());
              EXPECT_TRUE(support::BytesEqual(got.data(), want.data(), want.size())) << Name(isa) << " " << Name(out);
              EXPECT_TRUE(got.GuardsIntact());
            }
          }
        }
      }
    }
  }
}

TEST(DequantizeTernaryTest, RejectsBadArguments) {
  const support::TernaryWeight w(support::TernaryVector(5, 12), {1, 1, 1}, 3, 4);
  std::vector<float> out(12);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(DequantizeTernary({w.view(), MakeMatrix(out.data(), DType::kI8, 3, 4)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DequantizeTernary({w.view(), MakeMatrix(out.data(), DType::kF32, 3, 5)}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TernarizeBackwardTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for (const auto& [rows, cols] :
       {std::pair{1, 1}, std::pair{7, 13}, std::pair{17, 64}, std::pair{45, 65}, std::pair{64, 300}}) {
    const int n = rows, k = cols;  // clang 14: a lambda cannot capture a structured binding
    const std::vector<float> w = support::NormalVector(1, n * k), g = support::NormalVector(2, n * k);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto wb = support::ToBytes(w, dtype), gb = support::ToBytes(g, dtype);
      for (const Ste ste : {Ste::kIdentity, Ste::kRoundOnly, Ste::kClipped}) {
        for (const bool scale_grad : {false, true}) {
          GuardedBytes want(n * k * SizeOf(dtype));
          const auto run = [&](GuardedBytes& out, const Stream& stream) {
            return TernarizeBackward(
                       {MakeConstMatrix(wb.data(), dtype, n, k), 0.8f, MakeConstMatrix(gb.data(), dtype, n, k), ste,
                        scale_grad, MakeMatrix(out.data(), dtype, n, k)},
                       stream)
                .ok();
          };
          ASSERT_TRUE(run(want, CpuStream(Isa::kPlain)));
          for (const Isa isa : support::Isas()) {
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
              GuardedBytes got(n * k * SizeOf(dtype));
              ASSERT_TRUE(run(got, CpuStream(isa, pool)));
              EXPECT_TRUE(support::BytesEqual(got.data(), want.data(), want.size()))
                  << Name(isa) << " " << n << " x " << k;
              EXPECT_TRUE(got.GuardsIntact());
            }
          }
        }
      }
    }
  }
}

// The gradients of round_only and identity point in similar directions (docs/numerics.md 6: cosine above 0.80).
TEST(TernarizeBackwardTest, RoundOnlyIsZeroWhereSaturatedAndNearIdentity) {
  const std::vector<float> w = support::NormalVector(11, 64 * 64, 0.02f), g = support::NormalVector(12, 64 * 64);
  std::vector<float> scale(64), got(w.size());
  std::vector<std::uint8_t> rows(64 * 16);
  const ConstMatrix wm = MakeConstMatrix(w.data(), DType::kF32, 64, 64),
                    gm = MakeConstMatrix(g.data(), DType::kF32, 64, 64);
  for (const Isa isa : support::Isas()) {
    ASSERT_TRUE(Ternarize({wm, scale.data(), rows.data(), nullptr}, CpuStream(isa)).ok());
    ASSERT_TRUE(TernarizeBackward({wm, scale[0], gm, Ste::kRoundOnly, /*scale_grad=*/false,
                                   MakeMatrix(got.data(), DType::kF32, 64, 64)},
                                  CpuStream(isa))
                    .ok());
    std::size_t saturated = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const bool out = std::fabs(w[i] / scale[0]) > 1.5f;
      saturated += out;
      EXPECT_EQ(got[i], out ? 0.0f : g[i]) << i;
    }
    EXPECT_GT(saturated, w.size() / 10);
    EXPECT_GT(support::Cosine(got, g), 0.80);
  }
}

TEST(TernarizeBackwardTest, RejectsBadArguments) {
  std::vector<float> w(12);
  const ConstMatrix in = MakeConstMatrix(w.data(), DType::kF32, 3, 4);
  const Matrix out = MakeMatrix(w.data(), DType::kF32, 3, 4);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(TernarizeBackward({in, 0.5f, in, Ste::kClipped, /*scale_grad=*/true, out}, stream).code(),
            absl::StatusCode::kOk);
  EXPECT_EQ(TernarizeBackward({in, 0.0f, in, Ste::kClipped, /*scale_grad=*/true, out}, stream).code(),
            absl::StatusCode::kInvalidArgument);
  const ConstMatrix other_shape = MakeConstMatrix(w.data(), DType::kF32, 4, 3);
  EXPECT_EQ(TernarizeBackward({in, 0.5f, other_shape, Ste::kClipped, /*scale_grad=*/true, out}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
