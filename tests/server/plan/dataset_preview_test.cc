// Bounds on what a preview reads, and on what it answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"
#include "server/rpc/dataset_proto.h"
#include "tests/support/temp_directory.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kRow[] = "{\"text\": \"the keeper of the light\"}\n";

class PreviewTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string directory = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16";
    auto assets = model::LoadTextAssets(directory);
    ASSERT_TRUE(assets.ok()) << assets.status();
    model_.assets = *std::move(assets);
    std::ifstream in(directory + "/config.json");
    auto config = model::ParseHfConfig(base::Json::parse(in));
    ASSERT_TRUE(config.ok()) << config.status();
    model_.config = *std::move(config);
    std::ofstream out(directory_ / "data.jsonl");
    for (int i = 0; i < kRows; ++i) out << kRow;
    out.close();
    stored_.name = "rows";
    stored_.data_path = directory_ / "data.jsonl";
    stored_.sha256 = std::string(64, '0');
    stored_.meta = {{"format", "text"}, {"rows", kRows}};
    request_.set_n(100);
    request_.mutable_data()->set_max_seq_len(64);
  }
  v1::PreviewDatasetResponse Shown(const PreviewBounds& bounds) {
    v1::PreviewDatasetResponse response;
    const absl::Status status = Preview(stored_, model_, request_, bounds, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
  // Every row has more than two tokens and is dropped: the preview shows no row and reads the next one.
  void DropAll() {
    request_.mutable_data()->set_max_seq_len(2);
    request_.mutable_data()->set_overlong(v1::OVERLONG_POLICY_DROP);
  }

  static constexpr int kRows = 10;
  const testing::TempDirectory directory_;
  registry::ModelText model_;
  store::StoredDataset stored_;
  v1::PreviewDatasetRequest request_;
};

TEST_F(PreviewTest, WithoutBoundsEveryRowIsShown) {
  const auto all = Shown({});
  EXPECT_EQ(all.rows_size(), kRows);
  EXPECT_EQ(all.looked_rows(), kRows);
  EXPECT_EQ(all.total_rows(), kRows);
  request_.set_n(4);
  EXPECT_EQ(Shown({}).looked_rows(), 4);
}

TEST_F(PreviewTest, ReadsNoFurtherThanItsBounds) {
  DropAll();
  PreviewBounds bounds;
  EXPECT_EQ(Shown(bounds).looked_rows(), kRows);
  bounds.max_looked_rows = 4;
  const auto rows = Shown(bounds);
  EXPECT_EQ(rows.looked_rows(), 4);
  EXPECT_EQ(rows.dropped_rows(), 4);
  EXPECT_EQ(rows.rows_size(), 0);
  EXPECT_EQ(rows.total_rows(), kRows);
  bounds = {};
  bounds.max_looked_bytes = 2 * sizeof kRow;  // two rows and some bytes
  const auto bytes = Shown(bounds);
  EXPECT_EQ(bytes.looked_rows(), 3) << "the row that exceeds it is the last";
  EXPECT_EQ(bytes.dropped_rows(), 3);
}

TEST_F(PreviewTest, CancelEndsThePreviewAtTheNextRow) {
  DropAll();
  int asked = 0;
  PreviewBounds bounds;
  bounds.cancelled = [&asked] { return ++asked == 3; };
  v1::PreviewDatasetResponse response;
  const absl::Status status = Preview(stored_, model_, request_, bounds, &response);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(response.looked_rows(), 2);
  EXPECT_EQ(asked, 3);
}

TEST_F(PreviewTest, CancelEndsThePreviewInsideAConversation) {
  std::ofstream(directory_ / "data.jsonl")
      << R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"},)"
      << R"( {"role": "user", "content": "c?"}, {"role": "assistant", "content": "d"}]})" << "\n";
  stored_.meta = {{"format", "chat"}, {"rows", 1}};
  int asked = 0;
  PreviewBounds bounds;
  bounds.cancelled = [&asked] { return ++asked == 3; };
  v1::PreviewDatasetResponse response;
  const absl::Status status = Preview(stored_, model_, request_, bounds, &response);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(asked, 3) << "once at the line, then at its renderings";
  EXPECT_EQ(response.looked_rows(), 0);
}

// The same limit as for an upload. Data that was uploaded before the limit existed is still trained on.
TEST_F(PreviewTest, AConversationOfMoreThan1024MessagesIsNotShown) {
  const auto write = [&](int messages) {
    std::string line = R"({"messages": [{"role": "assistant", "content": "a"})";
    for (int i = 1; i < messages; ++i) line += R"(, {"role": "user", "content": "a"})";
    std::ofstream(directory_ / "data.jsonl") << line << "]}\n";
  };
  stored_.meta = {{"format", "chat"}, {"rows", 1}};
  write(1025);
  v1::PreviewDatasetResponse response;
  const absl::Status refused = Preview(stored_, model_, request_, {}, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "DATASET_FORMAT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 1: \"messages\" has 1025 messages, wanted at most 1024"));
  write(1024);
  EXPECT_EQ(Shown({}).looked_rows(), 1);
}

// Damage of meta.json, which only a server writes.
TEST_F(PreviewTest, UnreadableMetadataOfADatasetIsDataLoss) {
  for (const base::Json& meta :
       {base::Json{{"format", "text"}, {"rowz", kRows}}, base::Json{{"format", "tent"}, {"rows", kRows}},
        base::Json{{"formal", "text"}, {"rows", kRows}}, base::Json{{"format", "text"}, {"rows", "ten"}}}) {
    stored_.meta = meta;
    v1::PreviewDatasetResponse response;
    const absl::Status status = Preview(stored_, model_, request_, {}, &response);
    EXPECT_TRUE(absl::IsDataLoss(status)) << meta << ": " << status;
    EXPECT_EQ(base::Reason(status), "ARTIFACT_CORRUPT") << meta;
    EXPECT_EQ(base::ReasonMetadata(status)["dataset"], "rows") << meta;
  }
}

TEST_F(PreviewTest, AnswerHasNoMoreRowsThanMayBeSent) {
  const auto all = Shown({});
  PreviewBounds bounds;
  bounds.max_bytes = all.ByteSizeLong() / 2 + 128;
  const auto half = Shown(bounds);
  EXPECT_GT(half.rows_size(), 0);
  EXPECT_LT(half.rows_size(), kRows);
  EXPECT_LE(half.ByteSizeLong(), bounds.max_bytes);
  EXPECT_EQ(half.looked_rows(), half.rows_size() + 1) << "and one that did not fit";
  for (int i = 0; i < half.rows_size(); ++i)
    EXPECT_EQ(half.rows(i).SerializeAsString(), all.rows(i).SerializeAsString());
  bounds.max_bytes = 140;
  v1::PreviewDatasetResponse response;
  const absl::Status refused = Preview(stored_, model_, request_, bounds, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "data.max_seq_len");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 1 becomes "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 140 (--max_send_bytes)"));
}

// T1: the warning names the rows, and the answer leaves room for it.
TEST_F(PreviewTest, WarnsOfAMergedBoundary) {
  std::ofstream(directory_ / "data.jsonl") << R"({"prompt": "walk ", "completion": "the"})" << "\n"
                                           << R"({"prompt": "walk t", "completion": "he"})" << "\n";
  stored_.meta = {{"format", "prompt_completion"}, {"rows", 2}};
  const auto shown = Shown({});
  ASSERT_EQ(shown.rows_size(), 2);
  EXPECT_EQ(shown.rows(0).trained().Get(5), true) << "the token \"the\"";
  EXPECT_EQ(shown.rows(1).SerializeAsString().substr(2), shown.rows(0).SerializeAsString().substr(2))
      << "equal except for the line";
  ASSERT_EQ(shown.warnings_size(), 1);
  EXPECT_EQ(shown.warnings(0).reason(), "PROMPT_BOUNDARY_MERGED");
  EXPECT_THAT(shown.warnings(0).message(), HasSubstr("1 of 2 rows"));
  ASSERT_EQ(shown.warnings(0).row_ids_size(), 1);
  EXPECT_EQ(shown.warnings(0).row_ids(0), 2);
  PreviewBounds bounds;
  bounds.max_bytes = shown.ByteSizeLong() - 1;
  const auto less = Shown(bounds);
  EXPECT_EQ(less.rows_size(), 1);
  EXPECT_EQ(less.warnings_size(), 1);
  EXPECT_EQ(less.tokens(), shown.rows(0).token_ids_size());
  EXPECT_EQ(less.trainable_tokens(), 2);
}

// T6 (docs/faults.md)
TEST_F(PreviewTest, LargeRowWaitsForItsTurn) {
  std::string words;
  while (words.size() < (300u << 10)) words += "the keeper of the light ";
  std::ofstream(directory_ / "data.jsonl") << R"({"prompt": "who", "completion": "walked"})" << "\n"
                                           << "{\"prompt\": \"" << words << "\", \"completion\": \"walked\"}\n";
  stored_.meta = {{"format", "prompt_completion"}, {"rows", 2}};
  PreviewBounds bounds;
  data::LargeRows rows;
  int turns = 0;
  bounds.await_turn = [&] {
    ++turns;
    return rows.Await({});
  };
  EXPECT_EQ(Shown(bounds).rows_size(), 2);
  EXPECT_EQ(turns, 1) << "the first row is small";
  data::LargeRows little(base::MemoryBudget::Make(1 << 20));
  bounds.await_turn = [&] { return little.Await({}); };
  v1::PreviewDatasetResponse response;
  const absl::Status refused = Preview(stored_, model_, request_, bounds, &response);
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 2: encoding the row takes"));
}

// A book is one row. Its beginning shows that it is too long.
TEST_F(PreviewTest, ReadsNoMoreOfATextThanCanBeShown) {
  std::string words;
  while (words.size() < (3u << 20)) words += "the keeper of the light ";
  std::ofstream(directory_ / "data.jsonl") << "{\"text\": \"" << words << "\"}\n";
  stored_.meta = {{"format", "text"}, {"rows", 1}};
  request_.set_n(2);
  request_.mutable_data()->set_overlong(v1::OVERLONG_POLICY_TRUNCATE);
  const auto cut = Shown({});
  ASSERT_EQ(cut.rows_size(), 1);
  EXPECT_EQ(cut.rows(0).token_ids_size(), 64);
  EXPECT_EQ(cut.truncated_rows(), 1);
  // The preview reads the bytes of 2 rows of 64 tokens of 16 bytes each, and 4096 more: far less than the text has.
  EXPECT_LT(cut.rows(0).truncated_tokens(), 2 * 64 * 16 + 4096);
  request_.mutable_data()->set_overlong(v1::OVERLONG_POLICY_DROP);
  EXPECT_EQ(Shown({}).dropped_rows(), 1);
}

TEST_F(PreviewTest, DatasetWarnsOfTheEmptyAnswersFoundAtItsUpload) {
  auto dataset = ToProto(stored_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->warnings_size(), 0);
  stored_.meta[kEmptyAnswers] = {{"count", 3}, {"lines", {2, 5, 7}}};
  dataset = ToProto(stored_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ(dataset->warnings_size(), 1);
  EXPECT_EQ(dataset->warnings(0).reason(), "EMPTY_ANSWERS");
  EXPECT_THAT(dataset->warnings(0).message(), HasSubstr("3 of 10 rows have an answer without text"));
  EXPECT_THAT(dataset->warnings(0).row_ids(), ::testing::ElementsAre(2, 5, 7));
  for (const char* damaged : {R"(3)", R"({"count": 3})", R"({"count": "3", "lines": []})"}) {
    stored_.meta[kEmptyAnswers] = base::Json::parse(damaged);
    EXPECT_EQ(base::Reason(ToProto(stored_).status()), "ARTIFACT_CORRUPT") << damaged;
  }
}

}  // namespace
}  // namespace nibble::rpc
