// The messages of a preview, and their bytes.
#include <gmock/gmock.h>

#include <string>

#include "server/base/error.h"
#include "server/rpc/dataset_proto.h"
#include "tests/server/plan/preview_fixture.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;

class PreviewMessageTest : public plan::PreviewFixture {
 protected:
  PreviewMessageTest() {
    request_.set_n(100);
    request_.mutable_data()->set_max_seq_len(64);
  }
  absl::Status Make(std::size_t max_bytes, v1::PreviewDatasetResponse* response) {
    return Preview(stored_, model_, request_, {}, max_bytes, response);
  }
  v1::PreviewDatasetResponse Shown(std::size_t max_bytes = 16u << 20) {
    v1::PreviewDatasetResponse response;
    const absl::Status status = Make(max_bytes, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }

  v1::PreviewDatasetRequest request_;
};

TEST_F(PreviewMessageTest, HasRowsAndCounts) {
  request_.mutable_data()->set_max_seq_len(4);
  request_.mutable_data()->set_overlong(v1::OVERLONG_POLICY_TRUNCATE);
  const auto all = Shown();
  ASSERT_EQ(all.rows_size(), kRows);
  EXPECT_EQ(all.looked_rows(), kRows);
  EXPECT_EQ(all.total_rows(), kRows);
  EXPECT_EQ(all.truncated_rows(), kRows);
  EXPECT_EQ(all.tokens(), 4 * kRows);
  EXPECT_EQ(all.trainable_tokens(), 3 * kRows) << "the first token is never predicted";
  EXPECT_EQ(all.rows(1).row(), 2);
  EXPECT_EQ(all.rows(1).trained_size(), 4);
  EXPECT_EQ(all.rows(1).token_texts_size(), 4);
  EXPECT_GT(all.rows(1).truncated_tokens(), 0);
  EXPECT_FALSE(all.rows(1).text().empty());
}

// Without a length in the request, a job's default is shortened to what the model takes.
TEST_F(PreviewMessageTest, LengthOfTheRequestIsNotShortened) {
  const std::int64_t limit = model_.config.context_limit();
  request_.mutable_data()->set_max_seq_len(static_cast<std::int32_t>(limit + 1));
  v1::PreviewDatasetResponse response;
  EXPECT_EQ(base::ReasonMetadata(Make(16u << 20, &response))["field"], "data.max_seq_len");
  request_.clear_data();
  EXPECT_EQ(Shown().rows_size(), kRows);
}

TEST_F(PreviewMessageTest, AnswerHasNoMoreRowsThanMayBeSent) {
  const auto all = Shown();
  const std::size_t max_bytes = all.ByteSizeLong() / 2 + 128;
  const auto half = Shown(max_bytes);
  EXPECT_GT(half.rows_size(), 0);
  EXPECT_LT(half.rows_size(), kRows);
  EXPECT_LE(half.ByteSizeLong(), max_bytes);
  EXPECT_EQ(half.looked_rows(), half.rows_size() + 1) << "and one that did not fit";
  for (int i = 0; i < half.rows_size(); ++i)
    EXPECT_EQ(half.rows(i).SerializeAsString(), all.rows(i).SerializeAsString());
  v1::PreviewDatasetResponse response;
  const absl::Status refused = Make(140, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "data.max_seq_len");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 1 becomes "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 140 (--max_send_bytes)"));
}

TEST_F(PreviewMessageTest, LastRowMakesRoomForTheWarnings) {
  WriteRows("{\"prompt\": \"walk \", \"completion\": \"the\"}\n{\"prompt\": \"walk t\", \"completion\": \"he\"}\n",
            "prompt_completion", 2);
  const auto shown = Shown();
  ASSERT_EQ(shown.rows_size(), 2);
  EXPECT_EQ(shown.rows(1).SerializeAsString().substr(2), shown.rows(0).SerializeAsString().substr(2))
      << "equal except for the line number, the first two bytes";
  ASSERT_EQ(shown.warnings_size(), 1);
  EXPECT_EQ(shown.warnings(0).reason(), "PROMPT_BOUNDARY_MERGED");
  ASSERT_EQ(shown.warnings(0).row_ids_size(), 1);
  EXPECT_EQ(shown.warnings(0).row_ids(0), 2);
  const auto less = Shown(shown.ByteSizeLong() - 1);
  EXPECT_EQ(less.rows_size(), 1);
  EXPECT_EQ(less.warnings_size(), 1);
  EXPECT_EQ(less.tokens(), shown.rows(0).token_ids_size());
  EXPECT_EQ(less.trainable_tokens(), 2);
}

TEST_F(PreviewMessageTest, DatasetWarnsOfTheEmptyAnswersFoundAtItsUpload) {
  auto dataset = ToProto(stored_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->warnings_size(), 0);
  stored_.meta["empty_answers"] = {{"count", 3}, {"lines", {2, 5, 7}}};
  dataset = ToProto(stored_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ(dataset->warnings_size(), 1);
  EXPECT_EQ(dataset->warnings(0).reason(), "EMPTY_ANSWERS");
  EXPECT_THAT(dataset->warnings(0).message(), HasSubstr("3 of 10 rows have an answer without text"));
  EXPECT_THAT(dataset->warnings(0).row_ids(), ::testing::ElementsAre(2, 5, 7));
}

}  // namespace
}  // namespace nibble::rpc
