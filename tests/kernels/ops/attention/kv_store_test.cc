#include "kernels/ops/attention/kv_store.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/ops/attention/paged_cache.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Isas;

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kHeads = 3;

TEST(KvStoreTest, EveryElementIsFoundWhereTheFormatSays) {
  for (const DType cache_type : {DType::kF32, DType::kBF16}) {
    for (const DType k_type : {DType::kF32, DType::kBF16}) {
      for (const DType v_type : {DType::kF32, DType::kBF16}) {
        for (const std::int64_t d : {1, 8, 40, 64}) {
          for (const Isa isa : Isas()) {
            PagedCache cache(cache_type, kLayers, kHeads, d, 2, 3, 5);
            // 34 rows of sequence 1 from the start of a page, and 3 rows of sequence 0 from the middle of one.
            std::vector<std::int32_t> sequence(34, 1), position;
            for (int i = 0; i < 34; ++i) position.push_back(i + 32);
            for (int i = 0; i < 3; ++i) {
              sequence.push_back(0);
              position.push_back(i + 5);
            }
            const auto k = support::NormalVector(1, 37 * kHeads * d);
            const auto v = support::NormalVector(2, 37 * kHeads * d);
            const auto k_bytes = support::ToBytes(k, k_type);
            const auto v_bytes = support::ToBytes(v, v_type);
            ThreadPool pool(2);
            ASSERT_TRUE(KvStore({.k = MakeConstMatrix(k_bytes.data(), k_type, 37, kHeads * d),
                                 .v = MakeConstMatrix(v_bytes.data(), v_type, 37, kHeads * d),
                                 .cache = cache.view(),
                                 .layer = 1,
                                 .rows = cache.Rows(sequence, position)},
                                CpuStream(isa, &pool))
                            .ok());
            const auto rounded = [&](float x, DType from) {
              return from == DType::kBF16 || cache_type == DType::kBF16 ? ToFloat(ToBF16(x)) : x;
            };
            for (std::size_t r = 0; r < 37; ++r) {
              for (std::int64_t h = 0; h < kHeads; ++h) {
                for (std::int64_t i = 0; i < d; ++i) {
                  const std::size_t at = r * static_cast<std::size_t>(kHeads * d) + static_cast<std::size_t>(h * d + i);
                  ASSERT_EQ(cache.Key(sequence[r], position[r], 1, h, i), rounded(k[at], k_type));
                  ASSERT_EQ(cache.Value(sequence[r], position[r], 1, h, i), rounded(v[at], v_type));
                  ASSERT_TRUE(std::isnan(cache.Key(sequence[r], position[r], 0, h, i)));  // another layer
                }
              }
            }
            // The page whose first position was written has zeros after the last row; the other page kept its bytes.
            EXPECT_EQ(cache.Key(1, 66, 1, 0, 0), 0.0f);
            EXPECT_EQ(cache.Value(1, 95, 1, 2, d - 1), 0.0f);
            EXPECT_TRUE(std::isnan(cache.Key(0, 4, 1, 0, 0)));
            EXPECT_TRUE(std::isnan(cache.Value(0, 8, 1, 0, 0)));
          }
        }
      }
    }
  }
}

TEST(KvStoreTest, RejectsPositionsPagesAndLayersOutOfRange) {
  PagedCache cache(DType::kF32, kLayers, kHeads, 4, 2, 2, 5);
  const std::vector<float> kv(2 * kHeads * 4);
  const auto store = [&](std::vector<std::int32_t> sequence, std::vector<std::int32_t> position, std::int64_t layer) {
    const ConstMatrix m = MakeConstMatrix(kv.data(), DType::kF32, 2, kHeads * 4);
    return KvStore({.k = m, .v = m, .cache = cache.view(), .layer = layer, .rows = cache.Rows(sequence, position)},
                   CpuStream(Isa::kPlain));
  };
  EXPECT_TRUE(store({0, 0}, {62, 63}, 0).ok());
  EXPECT_NE(store({0, 0}, {63, 64}, 0).message().find("position[1] is 64, wanted 0 to 63"), std::string::npos);
  EXPECT_NE(store({0, 2}, {0, 0}, 0).message().find("sequence[1] is 2"), std::string::npos);
  EXPECT_NE(store({0, 0}, {3, 3}, 0).message().find("position[1] is 3, wanted above 3"), std::string::npos);
  EXPECT_NE(store({0, 0}, {0, 1}, 2).message().find("layer is 2"), std::string::npos);
  cache.tables()[1] = static_cast<std::int32_t>(cache.view().num_pages);
  EXPECT_NE(store({0, 0}, {31, 32}, 0).message().find("page_tables[0][1]"), std::string::npos);
}

}  // namespace
}  // namespace nibble::kernels
