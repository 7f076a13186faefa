#include "kernels/ops/attention/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Isas;

std::vector<float> InverseFrequencies(std::int64_t half) {
  std::vector<float> out(static_cast<std::size_t>(half));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return out;
}

struct Table {
  Table(std::int64_t half, std::int64_t positions)
      : cos(static_cast<std::size_t>(half * positions)), sin(cos.size()), num_positions(positions) {
    FillRopeTable(InverseFrequencies(half).data(), half, 0, positions, cos.data(), sin.data());
  }
  std::vector<float> cos;
  std::vector<float> sin;
  std::int64_t num_positions;
};

TEST(RopeTableTest, HoldsTheNearestFloatsForTheRoundedAngle) {
  const auto freq = InverseFrequencies(32);
  std::vector<float> cos(64), sin(64);
  for (const std::int64_t position : {0, 1, 2047, 131070}) {
    FillRopeTable(freq.data(), 32, position, 2, cos.data(), sin.data());
    for (std::size_t i = 0; i < 64; ++i) {
      const float angle = static_cast<float>(position + static_cast<std::int64_t>(i / 32)) * freq[i % 32];
      EXPECT_EQ(support::UlpDistance(cos[i], static_cast<float>(std::cos(static_cast<double>(angle)))), 0) << angle;
      EXPECT_EQ(support::UlpDistance(sin[i], static_cast<float>(std::sin(static_cast<double>(angle)))), 0) << angle;
    }
  }
}

TEST(RopeTest, RotatesEachHeadOnEveryPath) {
  constexpr std::int64_t kHeads = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t d : {2, 8, 16, 30, 40, 64, 80, 128}) {
      const std::int64_t half = d / 2;
      const Table table(half, 50);
      const std::vector<std::int32_t> position = {49, 0, 7, 7};
      const auto x = support::ToBytes(support::NormalVector(1, 4 * kHeads * d), dtype);
      std::vector<std::uint8_t> plain;
      for (const Isa isa : Isas()) {
        support::GuardedBytes got(static_cast<std::int64_t>(x.size()));
        std::memcpy(got.data(), x.data(), x.size());
        ThreadPool pool(2);
        ASSERT_TRUE(Rope({.x = MakeMatrix(got.data(), dtype, 4, kHeads * d),
                          .num_heads = kHeads,
                          .position = position.data(),
                          .cos = table.cos.data(),
                          .sin = table.sin.data(),
                          .table_positions = 50},
                         CpuStream(isa, &pool))
                        .ok());
        EXPECT_TRUE(got.GuardsIntact());
        if (isa == Isa::kPlain) {
          plain.assign(got.data(), got.data() + got.size());
          const auto at = [&](const std::uint8_t* bytes, std::int64_t i) {
            return dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes)[i]
                                        : ToFloat(reinterpret_cast<const BF16*>(bytes)[i]);
          };
          for (std::int64_t r = 0; r < 4; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
              for (std::int64_t i = 0; i < half; ++i) {
                const std::int64_t first = (r * kHeads + h) * d + i;
                const double a = at(x.data(), first), b = at(x.data(), first + half);
                const std::size_t entry = static_cast<std::size_t>(position[static_cast<std::size_t>(r)] * half + i);
                const double c = table.cos[entry], s = table.sin[entry];
                const double unit = dtype == DType::kF32 ? 0.0 : support::kEpsBF16;
                const double bound = (support::Gamma(3) + unit) * (std::fabs(a) + std::fabs(b));
                EXPECT_NEAR(at(got.data(), first), a * c - b * s, bound);
                EXPECT_NEAR(at(got.data(), first + half), b * c + a * s, bound);
              }
            }
          }
        }
        EXPECT_TRUE(support::BytesEqual(got.data(), plain.data(), plain.size())) << Name(isa) << " d=" << d;
      }
    }
  }
}

TEST(RopeTest, BackwardUndoesForward) {
  const Table table(20, 10);
  const std::vector<std::int32_t> position = {3, 9};
  const std::vector<float> x = support::NormalVector(2, 2 * 2 * 40);
  for (const Isa isa : Isas()) {
    std::vector<float> y = x;
    for (const bool backward : {false, true}) {
      ASSERT_TRUE(Rope({.x = MakeMatrix(y.data(), DType::kF32, 2, 80),
                        .num_heads = 2,
                        .position = position.data(),
                        .cos = table.cos.data(),
                        .sin = table.sin.data(),
                        .table_positions = 10,
                        .backward = backward},
                       CpuStream(isa))
                      .ok());
      if (!backward) {
        EXPECT_NE(y, x);
      }
    }
    // At most ten roundings (in each direction three, and two of the table's values) of |a| + |b|, which is below 8.
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 10 * support::kEpsF32 * 8);
  }
}

TEST(RopeTest, RejectsBadPositionsAndHeads) {
  const Table table(2, 4);
  std::vector<float> x(12);
  const std::vector<std::int32_t> position = {0, 4};
  RopeArgs args{.x = MakeMatrix(x.data(), DType::kF32, 2, 4),
                .num_heads = 1,
                .position = position.data(),
                .cos = table.cos.data(),
                .sin = table.sin.data(),
                .table_positions = 4};
  const auto out_of_range = Rope(args, CpuStream(Isa::kPlain));
  EXPECT_EQ(out_of_range.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(out_of_range.message().find("position[1] is 4"), std::string::npos) << out_of_range;
  args.x = MakeMatrix(x.data(), DType::kF32, 2, 3);
  EXPECT_FALSE(Rope(args, CpuStream(Isa::kPlain)).ok());  // odd head
  args.x = MakeMatrix(x.data(), DType::kF32, 2, 4);
  args.num_heads = 3;
  EXPECT_FALSE(Rope(args, CpuStream(Isa::kPlain)).ok());
}

}  // namespace
}  // namespace nibble::kernels
