#include "server/plan/dataset_preview.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/base/json.h"
#include "tests/server/plan/preview_fixture.h"
#include "tests/support/field_of.h"

namespace nibble::plan {
namespace {

using nibble::testing::FieldOf;
using ::testing::HasSubstr;

class PreviewTest : public PreviewFixture {
 protected:
  PreviewTest() {
    options_.num_rows = 100;
    SetLength(64);
  }
  void SetLength(std::int64_t tokens) {
    options_.data.max_seq_len = tokens;
    options_.default_max_seq_len = false;
  }
  absl::StatusOr<PreviewSummary> Preview(const PreviewBounds& bounds = {}) {
    rows_.clear();
    return PreviewDataset(stored_, model_, options_, bounds, [this](const PreviewRow& row) {
      if (rows_.size() == max_taken_) return false;
      rows_.push_back(row);
      return true;
    });
  }
  PreviewSummary Shown(const PreviewBounds& bounds = {}) {
    auto summary = Preview(bounds);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return summary.value_or(PreviewSummary());
  }
  // Every row has more than two tokens and is dropped: the preview shows no row and reads the next one.
  void DropAll() {
    SetLength(2);
    options_.data.overlong = "drop";
  }

  PreviewOptions options_;
  std::size_t max_taken_ = 1000;
  std::vector<PreviewRow> rows_;  // of the last preview
};

TEST_F(PreviewTest, WithoutBoundsEveryRowIsShown) {
  const PreviewSummary all = Shown();
  EXPECT_EQ(rows_.size(), std::size_t{kRows});
  EXPECT_EQ(all.looked_rows, kRows);
  EXPECT_EQ(all.total_rows, kRows);
  options_.num_rows = 4;
  EXPECT_EQ(Shown().looked_rows, 4);
}

TEST_F(PreviewTest, RowHasItsTokensAndTheirTexts) {
  WriteRows(R"({"prompt": "a b ", "completion": "c d"})", "prompt_completion");
  const PreviewSummary shown = Shown();
  ASSERT_EQ(rows_.size(), 1u);
  const PreviewRow& row = rows_[0];
  EXPECT_EQ(row.line, 1);
  EXPECT_EQ(row.part, 0);
  EXPECT_EQ(row.num_cut_off, 0);
  ASSERT_EQ(row.trained.size(), row.token_ids.size());
  ASSERT_EQ(row.token_texts.size(), row.token_ids.size());
  EXPECT_FALSE(row.trained.front());
  EXPECT_TRUE(row.trained.back());
  EXPECT_EQ(row.num_trained, std::count(row.trained.begin(), row.trained.end(), true));
  EXPECT_THAT(row.text, HasSubstr("a b c d"));
}

TEST_F(PreviewTest, EndsAtTheRowThatIsNotTaken) {
  max_taken_ = 3;
  EXPECT_EQ(Shown().looked_rows, 4);
  EXPECT_EQ(rows_.size(), 3u);
  const auto fail = [](const PreviewRow&) -> absl::StatusOr<bool> { return absl::DataLossError("x"); };
  EXPECT_EQ(PreviewDataset(stored_, model_, options_, {}, fail).status(), absl::DataLossError("x"));
}

TEST_F(PreviewTest, SplitRowsAreShownInParts) {
  options_.num_rows = 3;
  SetLength(4);
  const PreviewSummary shown = Shown();
  ASSERT_EQ(rows_.size(), 3u);
  EXPECT_EQ(rows_[0].line, 1);
  EXPECT_EQ(rows_[0].part, 0);
  EXPECT_EQ(rows_[1].line, 1);
  EXPECT_EQ(rows_[1].part, 1);
  EXPECT_GT(shown.split_rows, 0);
}

TEST_F(PreviewTest, RefusesOptionsOutOfRange) {
  for (const int n : {0, 101}) {
    options_.num_rows = n;
    EXPECT_EQ(FieldOf(Preview().status()), "n") << n;
  }
  options_.num_rows = 1;
  for (const std::int64_t tokens : {std::int64_t{1}, model_.config.context_limit() + 1}) {
    SetLength(tokens);
    EXPECT_EQ(FieldOf(Preview().status()), "data.max_seq_len") << tokens;
  }
  // A default is shortened to the model's limit.
  options_.default_max_seq_len = true;
  EXPECT_TRUE(Preview().ok());
  options_.data.format = "prompt_completion";
  options_.data.overlong = "split";
  const absl::Status split = Preview().status();
  EXPECT_EQ(FieldOf(split), "data.overlong");
  EXPECT_THAT(std::string(split.message()), HasSubstr("the format is prompt_completion"));
}

TEST_F(PreviewTest, ReadsNoFurtherThanItsBounds) {
  DropAll();
  PreviewBounds bounds;
  EXPECT_EQ(Shown(bounds).looked_rows, kRows);
  bounds.max_looked_rows = 4;
  const auto rows = Shown(bounds);
  EXPECT_EQ(rows.looked_rows, 4);
  EXPECT_EQ(rows.dropped_rows, 4);
  EXPECT_TRUE(rows_.empty());
  EXPECT_EQ(rows.total_rows, kRows);
  bounds = {};
  bounds.max_looked_bytes = 2 * sizeof kRow;  // two rows and some bytes
  const auto bytes = Shown(bounds);
  EXPECT_EQ(bytes.looked_rows, 3) << "the row that exceeds it is the last";
  EXPECT_EQ(bytes.dropped_rows, 3);
}

TEST_F(PreviewTest, CancelEndsThePreviewAtTheNextRow) {
  DropAll();
  int asked = 0;
  PreviewBounds bounds;
  bounds.cancelled = [&asked] { return ++asked == 3; };
  const absl::Status status = Preview(bounds).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(asked, 3) << "once for each line";
}

TEST_F(PreviewTest, CancelEndsThePreviewInsideAConversation) {
  WriteRows(R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"},)"
            R"( {"role": "user", "content": "c?"}, {"role": "assistant", "content": "d"}]})",
            "chat");
  int asked = 0;
  PreviewBounds bounds;
  bounds.cancelled = [&asked] { return ++asked == 3; };
  const absl::Status status = Preview(bounds).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(asked, 3) << "once at the line, then at its renderings";
}

// The same limit as for an upload. Data that was uploaded before the limit existed is still trained on.
TEST_F(PreviewTest, AConversationOfMoreThan1024MessagesIsNotShown) {
  const auto write = [&](int messages) {
    std::string line = R"({"messages": [{"role": "assistant", "content": "a"})";
    for (int i = 1; i < messages; ++i) line += R"(, {"role": "user", "content": "a"})";
    WriteRows(line + "]}\n", "chat");
  };
  write(1025);
  const absl::Status refused = Preview().status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "DATASET_FORMAT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 1: \"messages\" has 1025 messages, wanted at most 1024"));
  write(1024);
  EXPECT_EQ(Shown().looked_rows, 1);
}

// Damage of meta.json, which only a server writes.
TEST_F(PreviewTest, UnreadableMetadataOfADatasetIsDataLoss) {
  for (const base::Json& meta :
       {base::Json{{"format", "text"}, {"rowz", kRows}}, base::Json{{"format", "tent"}, {"rows", kRows}},
        base::Json{{"formal", "text"}, {"rows", kRows}}, base::Json{{"format", "text"}, {"rows", "ten"}}}) {
    stored_.meta = meta;
    const absl::Status status = Preview().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << meta << ": " << status;
    EXPECT_EQ(base::Reason(status), "ARTIFACT_CORRUPT") << meta;
    EXPECT_EQ(base::ReasonMetadata(status)["dataset"], "rows") << meta;
  }
}

// T1 (docs/faults.md)
TEST_F(PreviewTest, WarnsOfAMergedBoundary) {
  WriteRows("{\"prompt\": \"walk \", \"completion\": \"the\"}\n{\"prompt\": \"walk t\", \"completion\": \"he\"}\n",
            "prompt_completion", 2);
  const PreviewSummary shown = Shown();
  ASSERT_EQ(rows_.size(), 2u);
  EXPECT_TRUE(rows_[0].trained[5]) << "the token \"the\"";
  EXPECT_EQ(rows_[1].token_ids, rows_[0].token_ids);
  EXPECT_EQ(rows_[1].trained, rows_[0].trained);
  EXPECT_EQ(rows_[1].line, 2);
  ASSERT_EQ(shown.warnings.size(), 1u);
  EXPECT_EQ(shown.warnings[0].reason, "PROMPT_BOUNDARY_MERGED");
  EXPECT_THAT(shown.warnings[0].message, HasSubstr("1 of 2 rows"));
  EXPECT_EQ(shown.warnings[0].rows, std::vector<std::int64_t>{2});
}

// T6 (docs/faults.md)
TEST_F(PreviewTest, LargeRowWaitsForItsTurn) {
  std::string words;
  while (words.size() < (300u << 10)) words += "the keeper of the light ";
  WriteRows("{\"prompt\": \"who\", \"completion\": \"walked\"}\n{\"prompt\": \"" + words +
                "\", \"completion\": \"walked\"}\n",
            "prompt_completion", 2);
  PreviewBounds bounds;
  data::LargeRows rows;
  int turns = 0;
  bounds.await_turn = [&] {
    ++turns;
    return rows.Await({});
  };
  Shown(bounds);
  EXPECT_EQ(rows_.size(), 2u);
  EXPECT_EQ(turns, 1) << "the first row is small";
  data::LargeRows little(base::MemoryBudget::Make(1 << 20));
  bounds.await_turn = [&] { return little.Await({}); };
  const absl::Status refused = Preview(bounds).status();
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 2: encoding the row takes"));
}

// A book is one row. Its beginning shows that it is too long.
TEST_F(PreviewTest, ReadsNoMoreOfATextThanCanBeShown) {
  std::string words;
  while (words.size() < (3u << 20)) words += "the keeper of the light ";
  WriteRows("{\"text\": \"" + words + "\"}\n", "text");
  options_.num_rows = 2;
  options_.data.overlong = "truncate";
  const auto cut = Shown();
  ASSERT_EQ(rows_.size(), 1u);
  EXPECT_EQ(rows_[0].token_ids.size(), 64u);
  EXPECT_EQ(cut.truncated_rows, 1);
  // The preview reads the bytes of 2 rows of 64 tokens of 16 bytes each, and 4096 more: far less than the text has.
  EXPECT_LT(rows_[0].num_cut_off, 2 * 64 * 16 + 4096);
  options_.data.overlong = "drop";
  EXPECT_EQ(Shown().dropped_rows, 1);
}

}  // namespace
}  // namespace nibble::plan
