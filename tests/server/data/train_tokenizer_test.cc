#include "server/data/train_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/text/tokenizer.h"
#include "tests/support/temp_directory.h"

namespace nibble::data {
namespace {

using ::testing::HasSubstr;

class TrainTokenizerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Train(const std::string& rows, RowFormat format, const base::Cancelled& cancelled = {}) {
    const std::string path = directory_.path() + "/data.jsonl";
    std::ofstream(path) << rows;
    return TrainTokenizer(path, format, std::vector<std::string>{"<end>"}, 400, cancelled, [this](std::int64_t bytes) {
      EXPECT_GT(bytes, reported_);
      reported_ = bytes;
    });
  }
  // Whether "lighthouse", which the rows repeat, became one token.
  static bool KnowsLighthouse(const absl::StatusOr<std::string>& json) {
    EXPECT_TRUE(json.ok()) << json.status();
    const auto tokenizer = text::Tokenizer::FromJson(json.value_or(""));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() && (*tokenizer)->TokenId("lighthouse").has_value();
  }

  testing::TempDirectory directory_;
  std::int64_t reported_ = 0;
};

TEST_F(TrainTokenizerTest, ReadsTheTextsOfEveryFormat) {
  EXPECT_TRUE(KnowsLighthouse(Train("{\"text\": \"lighthouse\"}\n\n{\"text\": \"lighthouse\"}", RowFormat::kText)));
  const std::string answer = "{\"prompt\": \"a\", \"completion\": \"lighthouse\"}\n";
  EXPECT_TRUE(KnowsLighthouse(Train(answer + answer, RowFormat::kPromptCompletion)));
  const std::string question = "{\"prompt\": \"lighthouse\", \"completion\": \"a\"}\n";
  EXPECT_TRUE(KnowsLighthouse(Train(question + question, RowFormat::kPromptCompletion)));
  const std::string chat =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"lighthouse\"}, {\"role\": \"assistant\", \"content\": null, "
      "\"tool_calls\": [{\"name\": \"harbour\"}]}]}\n";
  EXPECT_TRUE(KnowsLighthouse(Train(chat + chat, RowFormat::kChat)));
}

TEST_F(TrainTokenizerTest, NamesTheLineOfADamagedRow) {
  const auto json = Train("{\"text\": \"a\"}\n{\"text\": 1}\n", RowFormat::kText);
  EXPECT_THAT(json.status().ToString(), HasSubstr("line 2: \"text\" is not a string"));
  EXPECT_EQ(base::Reason(json.status()), "DATASET_FORMAT");
}

TEST_F(TrainTokenizerTest, ReportsProgressAndStopsWhenCancelled) {
  std::string rows;
  while (rows.size() < (std::size_t{9} << 20)) rows += "{\"text\": \"the keeper counted the boats\"}\n";
  EXPECT_TRUE(Train(rows, RowFormat::kText).ok());
  EXPECT_GT(reported_, std::int64_t{8} << 20);
  const std::int64_t all = std::exchange(reported_, 0);
  int calls = 0;
  EXPECT_TRUE(absl::IsCancelled(Train(rows, RowFormat::kText, [&] { return ++calls == 2; }).status()));
  EXPECT_LT(reported_, all);
}

TEST_F(TrainTokenizerTest, MemoryGrowsWithTheFileUpToALimit) {
  EXPECT_LT(TrainTokenizerBytes(0, 1000), TrainTokenizerBytes(1 << 20, 1000));
  EXPECT_EQ(TrainTokenizerBytes(std::uint64_t{1} << 30, 1000), TrainTokenizerBytes(std::uint64_t{1} << 40, 1000));
  EXPECT_LT(TrainTokenizerBytes(std::uint64_t{1} << 40, 1000), std::int64_t{2} << 30);
}

}  // namespace
}  // namespace nibble::data
