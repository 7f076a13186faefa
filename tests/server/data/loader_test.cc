#include "server/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace nibble::data {
namespace {

// Example i has `sizes[i]` tokens, all of them i; the first half is a prompt.
std::vector<Example> Examples(const std::vector<std::size_t>& sizes) {
  std::vector<Example> examples;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Example example;
    example.tokens.assign(sizes[i], static_cast<std::int32_t>(i));
    example.trained.assign(sizes[i], 1);
    std::fill_n(example.trained.begin(), sizes[i] / 2, std::uint8_t{0});
    examples.push_back(std::move(example));
  }
  return examples;
}

TEST(LoaderTest, TargetIsTheNextTokenOfTheSameExampleIfItIsTrained) {
  std::vector<Example> examples = {{{5, 6, 7, 8}, {1, 0, 1, 1}}, {{9, 10}, {1, 1}}};
  Loader loader(examples, Packing::kSegmented, 8, std::nullopt);
  const MicroBatch batch = loader.Next(1);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{-1, 7, 8, -1, 10, -1}));
  EXPECT_EQ(batch.segments, (std::vector<std::int64_t>{0, 4, 6}));
  EXPECT_EQ(batch.rows, (std::vector<std::int64_t>{0, 6}));
  EXPECT_EQ(batch.num_trained, 3);
}

TEST(LoaderTest, PackedRowsHoldWholeExamplesWithinTheLimit) {
  const auto examples = Examples({3, 5, 2, 8, 1, 1, 7, 4});
  for (const Packing packing : {Packing::kNone, Packing::kSegmented}) {
    Loader loader(examples, packing, 8, 1);
    std::map<std::int32_t, int> seen;
    std::int64_t rows = 0;
    while (loader.cursor().epoch == 0 && loader.cursor().taken < 8) {
      const MicroBatch batch = loader.Next(2);
      rows += batch.num_rows;
      for (std::size_t r = 0; r + 1 < batch.rows.size(); ++r) EXPECT_LE(batch.rows[r + 1] - batch.rows[r], 8);
      for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) {
        const std::int32_t id = batch.tokens[static_cast<std::size_t>(batch.segments[s])];
        EXPECT_EQ(batch.segments[s + 1] - batch.segments[s],
                  static_cast<std::int64_t>(examples[static_cast<std::size_t>(id)].tokens.size()));
        ++seen[id];
      }
    }
    EXPECT_EQ(seen.size(), 8u);
    for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << id;
    EXPECT_EQ(rows, loader.RowsInEpoch(0));
    if (packing == Packing::kNone) {
      EXPECT_EQ(rows, 8);
    }
  }
}

TEST(LoaderTest, SeekResumesAtTheCursor) {
  const auto examples = Examples({3, 5, 2, 8, 1, 1, 7, 4, 6, 6});
  Loader whole(examples, Packing::kSegmented, 12, 42);
  Loader resumed(examples, Packing::kSegmented, 12, 42);
  for (int i = 0; i < 25; ++i) {
    resumed.Seek(whole.cursor());
    const MicroBatch a = whole.Next(2);
    const MicroBatch b = resumed.Next(2);
    EXPECT_EQ(a.tokens, b.tokens) << i;
    EXPECT_EQ(a.segments, b.segments) << i;
  }
  EXPECT_GT(whole.cursor().epoch, 1);
}

TEST(LoaderTest, EachEpochIsReshuffledAndTheSameSeedGivesTheSameOrder) {
  const auto first = EpochOrder(100, 7, 0);
  EXPECT_EQ(first, EpochOrder(100, 7, 0));
  EXPECT_NE(first, EpochOrder(100, 7, 1));
  EXPECT_NE(first, EpochOrder(100, 8, 0));
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, EpochOrder(100, std::nullopt, 3));
}

}  // namespace
}  // namespace nibble::data
