#include "server/data/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "server/base/error.h"
#include "tests/server/data/token_source.h"

namespace nibble::data {
namespace {

// `rows[i]`: number of examples of line i + 1. The examples have 2, 3, 4 ... tokens.
Dataset Made(const std::vector<int>& rows) {
  std::vector<Example> examples;
  Dataset dataset;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (int i = 0; i < rows[row]; ++i) {
      Example example;
      example.tokens.assign(examples.size() + 2, static_cast<std::int32_t>(row));
      example.trained.assign(examples.size() + 2, 1);
      example.line = static_cast<std::int64_t>(row) + 1;
      dataset.num_tokens += static_cast<std::int64_t>(example.tokens.size());
      dataset.num_trained += example.num_trained();
      examples.push_back(std::move(example));
    }
    ++dataset.num_rows;
  }
  dataset.examples = ExampleList(std::move(examples));
  return dataset;
}

std::vector<std::int64_t> LinesOf(const Dataset& dataset) {
  std::vector<std::int64_t> lines;
  for (std::size_t i = 0; i < dataset.examples.size(); ++i) lines.push_back(dataset.examples.line(i));
  return lines;
}

TEST(HoldOutTest, EachExampleIsInOnePartInTheOrderOfTheFile) {
  const Dataset all = Made({1, 3, 0, 2, 1, 5, 1, 1, 2, 4, 1});
  for (const double fraction : {0.01, 0.1, 0.25, 0.5}) {
    const auto parts = HoldOut(all, fraction);
    ASSERT_TRUE(parts.ok()) << parts.status();
    const std::vector<std::int64_t> train = LinesOf(parts->train), eval = LinesOf(parts->eval);
    EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
    EXPECT_TRUE(std::is_sorted(eval.begin(), eval.end()));
    EXPECT_EQ(train.size() + eval.size(), all.examples.size());
    const std::set<std::int64_t> train_lines(train.begin(), train.end()), eval_lines(eval.begin(), eval.end());
    for (const std::int64_t line : eval_lines)
      EXPECT_FALSE(train_lines.contains(line)) << "a row is in both parts: " << line;
    // 10 of the 11 rows have examples.
    EXPECT_EQ(static_cast<std::int64_t>(eval_lines.size()), std::max<std::int64_t>(1, std::llround(fraction * 10)));
    EXPECT_EQ(parts->train.num_tokens + parts->eval.num_tokens, all.num_tokens);
    EXPECT_EQ(parts->train.num_trained + parts->eval.num_trained, all.num_trained);
    for (std::size_t i = 0; i < eval.size(); ++i) {
      EXPECT_EQ(parts->eval.examples.num_tokens(i), static_cast<std::int64_t>(parts->eval.examples[i].tokens.size()));
      EXPECT_EQ(parts->eval.examples[i].line, eval[i]);
    }
    EXPECT_EQ(parts->train.num_rows, 11) << "rows read";
  }
}

TEST(HoldOutTest, TheSameDataAndShareHoldOutTheSameRows) {
  const Dataset all = Made(std::vector<int>(1000, 1));
  const auto once = HoldOut(all, 0.1), again = HoldOut(Made(std::vector<int>(1000, 1)), 0.1), more = HoldOut(all, 0.2);
  ASSERT_TRUE(once.ok() && again.ok() && more.ok());
  const std::vector<std::int64_t> lines = LinesOf(once->eval);
  EXPECT_EQ(LinesOf(again->eval), lines);
  EXPECT_EQ(lines.size(), 100u);
  // The rows come from the whole file.
  EXPECT_LT(lines.front(), 100);
  EXPECT_GT(lines.back(), 900);
  const std::vector<std::int64_t> larger = LinesOf(more->eval);
  EXPECT_TRUE(std::includes(larger.begin(), larger.end(), lines.begin(), lines.end()))
      << "a larger share has these rows too";
}

TEST(HoldOutTest, BothPartsHaveARow) {
  const auto two = HoldOut(Made({1, 1}), 0.01);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->train.examples.size(), 1u);
  EXPECT_EQ(two->eval.examples.size(), 1u);
  for (const auto& rows : {std::vector<int>{}, {1}, {7}, {0, 3, 0}}) {
    const absl::Status refused = HoldOut(Made(rows), 0.5).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(base::Reason(refused), "NO_TRAINABLE_TOKENS");
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("wanted at least 2"));
  }
}

// A conversion reads the share from nibble.json of the model, so it may be any number.
TEST(HoldOutTest, SharesOutOfRangeAreRefused) {
  for (const double fraction : {0.0, -1.0, 0.51, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HoldOut(Made({1, 1, 1}), fraction).status())) << fraction;
  }
}

using HoldOutOfFileTest = TokenSourceTest;

// Trainers read token files; a planner on a full disk has only lengths; both must hold out the same rows.
TEST_F(HoldOutOfFileTest, FilesLengthsAndExamplesInMemoryHaveTheSameParts) {
  TokenSource source = Source(RowFormat::kText, 20);
  const auto file = LoadTokens(base::RealFileSystem(), source, {});
  ASSERT_TRUE(file.ok()) << file.status();
  source.tokens_directory.clear();
  const auto memory = LoadTokens(base::RealFileSystem(), source, {});
  const auto lengths = LoadTokens(base::RealFileSystem(), source, {.without_file = WithoutFile::kLengthsAlone});
  ASSERT_TRUE(memory.ok() && lengths.ok());
  const auto of_file = HoldOut(*file, 0.3), of_memory = HoldOut(*memory, 0.3), of_lengths = HoldOut(*lengths, 0.3);
  ASSERT_TRUE(of_file.ok() && of_memory.ok() && of_lengths.ok());
  EXPECT_EQ(LinesOf(of_memory->eval), LinesOf(of_file->eval));
  EXPECT_EQ(LinesOf(of_lengths->eval), LinesOf(of_file->eval));
  EXPECT_EQ(of_lengths->train.num_tokens, of_file->train.num_tokens);
  ASSERT_GT(of_file->eval.examples.size(), 0u);
  for (std::size_t i = 0; i < of_file->eval.examples.size(); ++i) {
    EXPECT_EQ(of_file->eval.examples[i].tokens, of_memory->eval.examples[i].tokens) << i;
    EXPECT_EQ(of_lengths->eval.examples.num_tokens(i), of_memory->eval.examples.num_tokens(i)) << i;
  }
}

}  // namespace
}  // namespace nibble::data
