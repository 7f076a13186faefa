#include "server/model/replay.h"

#include <gmock/gmock.h>

#include "tests/server/model/small_models.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

class ReplayTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = models_.Load(models_.int8());
    auto record = MakeRecord(*model_, {{3, 1, 4, 1, 5, 9, 2, 6}, {100, 50, 7}}, models_.stream());
    ASSERT_TRUE(record.ok()) << record.status();
    record_ = *std::move(record);
  }
  ReplayResult Replay() {
    const auto result = ReplayRecord(*model_, record_, models_.stream());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(ReplayResult{});
  }
  SmallModels models_;
  std::shared_ptr<const LoadedModel> model_;
  Record record_;
};

TEST_F(ReplayTest, WhatWasRecordedIsAnsweredAgain) {
  EXPECT_EQ(record_.num_rows(), 11);
  EXPECT_EQ(record_.weights_digest, model_->info().weights_digest);
  const ReplayResult result = Replay();
  EXPECT_TRUE(result.equal);
  EXPECT_EQ(result.rows, 11);
  EXPECT_EQ(result.differing_rows, 0);
  EXPECT_EQ(result.difference, "");
}

TEST_F(ReplayTest, OneDigestThatDiffersIsFound) {
  std::string& digest = record_.sequences[1].row_digests[2];
  digest[0] = digest[0] == '0' ? '1' : '0';
  const ReplayResult result = Replay();
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.differing_rows, 1);
  EXPECT_EQ(result.first_sequence, 1);
  EXPECT_EQ(result.first_position, 2);
  EXPECT_FALSE(result.difference.empty());
}

// A token changes its own row and every row after it.
TEST_F(ReplayTest, OneTokenThatDiffersIsFound) {
  record_.sequences[0].token_ids[3] = 2;
  const ReplayResult result = Replay();
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.first_sequence, 0);
  EXPECT_EQ(result.first_position, 3);
  EXPECT_EQ(result.differing_rows, 5);
}

TEST_F(ReplayTest, RecordsThatCannotBeReplayedSayWhy) {
  Record other = record_;
  other.device = kernels::DeviceKind::kCuda;
  EXPECT_TRUE(absl::IsFailedPrecondition(ReplayRecord(*model_, other, models_.stream()).status()));
  other = record_;
  other.sequences[0].token_ids[0] = 112;
  const absl::Status status = ReplayRecord(*model_, other, models_.stream()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace nibble::model
