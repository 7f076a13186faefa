#include "kernels/ops/elementwise/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;

constexpr std::int64_t kVocabulary = 37;

TEST(EmbeddingTest, EqualsIndexingWithRounding) {
  const std::vector<std::int32_t> ids = {0, 36, 5, 5, 17};
  for (const DType from : {DType::kF32, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t k : {1, 31, 64, 100}) {
        const auto values = support::NormalVector(1, kVocabulary * k);
        const auto table = support::ToBytes(values, from);
        support::GuardedBytes out(5 * k * SizeOf(to));
        ThreadPool pool(2);
        ASSERT_TRUE(Embedding({.ids = ids.data(),
                               .num_ids = 5,
                               .table = MakeConstMatrix(table.data(), from, kVocabulary, k),
                               .packed = {},
                               .out = MakeMatrix(out.data(), to, 5, k)},
                              CpuStream(Isa::kPlain, &pool))
                        .ok());
        EXPECT_TRUE(out.GuardsIntact());
        for (std::int64_t t = 0; t < 5; ++t) {
          for (std::int64_t i = 0; i < k; ++i) {
            float want = values[static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * k + i)];
            if (from == DType::kBF16 || to == DType::kBF16) want = ToFloat(ToBF16(want));
            const std::int64_t at = t * k + i;
            EXPECT_EQ(to == DType::kF32 ? out.As<float>()[at] : ToFloat(out.As<BF16>()[at]), want);
          }
        }
      }
    }
  }
}

TEST(EmbeddingTest, ReadsThePackedCodesOfAnInt8Head) {
  for (const std::int64_t k : {5, 64, 70}) {
    const auto codes = support::CodeVector(2, kVocabulary * k);
    const auto scale = support::NormalVector(3, kVocabulary);
    std::vector<std::int8_t> tiles(static_cast<std::size_t>(PackedInt8Bytes(kVocabulary, k)));
    std::vector<std::int32_t> row_sum(static_cast<std::size_t>(RoundUp(kVocabulary, kInt8TileRows)));
    PackInt8Weight(codes.data(), kVocabulary, k, tiles.data(), row_sum.data());
    const PackedInt8Weight packed{tiles.data(), scale.data(), row_sum.data(), kVocabulary, k, Int8PaddedK(k)};
    std::vector<std::int32_t> ids(kVocabulary);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    for (const DType to : {DType::kF32, DType::kBF16}) {
      support::GuardedBytes out(kVocabulary * k * SizeOf(to));
      ASSERT_TRUE(Embedding({.ids = ids.data(),
                             .num_ids = kVocabulary,
                             .table = {},
                             .packed = packed,
                             .out = MakeMatrix(out.data(), to, kVocabulary, k)},
                            CpuStream(Isa::kPlain))
                      .ok());
      for (std::int64_t i = 0; i < kVocabulary * k; ++i) {
        const float want =
            static_cast<float>(codes[static_cast<std::size_t>(i)]) * scale[static_cast<std::size_t>(i / k)];
        EXPECT_EQ(to == DType::kF32 ? out.As<float>()[i] : ToFloat(out.As<BF16>()[i]),
                  to == DType::kF32 ? want : ToFloat(ToBF16(want)));
      }
      EXPECT_TRUE(out.GuardsIntact());
    }
  }
}

TEST(EmbeddingTest, RejectsAndNamesIdOutsideTheVocabulary) {
  const std::vector<float> table(8);
  std::vector<float> out(4);
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> ids = {3, bad};
    const auto status = Embedding({.ids = ids.data(),
                                   .num_ids = 2,
                                   .table = MakeConstMatrix(table.data(), DType::kF32, 4, 2),
                                   .packed = {},
                                   .out = MakeMatrix(out.data(), DType::kF32, 2, 2)},
                                  CpuStream(Isa::kPlain));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("ids[1] is " + std::to_string(bad) + ", wanted 0 to 3"), std::string::npos)
        << status;
  }
}

TEST(EmbeddingTest, RejectsCallWithoutATable) {
  const auto neither =
      Embedding({.ids = nullptr, .num_ids = 0, .table = {}, .packed = {}, .out = {}}, CpuStream(Isa::kPlain));
  EXPECT_EQ(neither.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
