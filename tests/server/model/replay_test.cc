#include "server/model/replay.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "server/model/artifact_writer.h"
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

TEST_F(ReplayTest, ReplayOfTheSameModelIsEqual) {
  EXPECT_EQ(record_.num_rows(), 11);
  EXPECT_EQ(record_.weights_digest, model_->info().weights_digest);
  const ReplayResult result = Replay();
  EXPECT_TRUE(result.equal);
  EXPECT_EQ(result.rows, 11);
  EXPECT_EQ(result.differing_rows, 0);
  EXPECT_EQ(result.difference, "");
}

TEST_F(ReplayTest, DetectsOneDifferentDigest) {
  std::string& digest = record_.sequences[1].row_digests[2];
  digest[0] = digest[0] == '0' ? '1' : '0';
  const ReplayResult result = Replay();
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.differing_rows, 1);
  EXPECT_EQ(result.first_sequence, 1);
  EXPECT_EQ(result.first_position, 2);
  EXPECT_FALSE(result.difference.empty());
}

// A different token changes its own row and every row after it.
TEST_F(ReplayTest, DetectsOneDifferentToken) {
  record_.sequences[0].token_ids[3] = 2;
  const ReplayResult result = Replay();
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.first_sequence, 0);
  EXPECT_EQ(result.first_position, 3);
  EXPECT_EQ(result.differing_rows, 5);
}

// The artifact is rewritten with the changed scale, so its checksums match; only the logits differ.
TEST_F(ReplayTest, DetectsHeadScaleOneUlpHigher) {
  const auto source = Artifact::Open(models_.int8());
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<TensorPlan> plan;
  for (const auto& [name, tensor] : (*source)->tensors()) plan.push_back({name, tensor.dtype, tensor.shape});
  auto writer = ArtifactWriter::Create(base::RealFileSystem(), models_.Path("changed"), plan);
  ASSERT_TRUE(writer.ok()) << writer.status();
  bool changed = false;
  for (const auto& [name, dtype, shape] : (*writer)->tensors().order()) {
    const auto& stored = (*source)->tensors().at(name).bytes;
    std::string bytes(reinterpret_cast<const char*>(stored.data()), stored.size());
    // The head has the scales of the embedding. The first scale is that of token 0, which the record does not contain,
    // so only the head's product changes.
    if (name == "model.embed_tokens.weight_scale") {
      float scale;
      std::memcpy(&scale, bytes.data(), sizeof scale);
      scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
      std::memcpy(bytes.data(), &scale, sizeof scale);
      changed = true;
    }
    ASSERT_TRUE((*writer)->tensors().Put(name, bytes).ok());
  }
  ASSERT_TRUE(changed);
  ASSERT_TRUE((*writer)->CopyCompanions(models_.int8()).ok());
  const auto info = (*writer)->Finish((*source)->config(), (*source)->info());
  ASSERT_TRUE(info.ok()) << info.status();
  model_ = models_.Load(models_.Path("changed"));
  record_.weights_digest = info->weights_digest;
  const ReplayResult result = Replay();
  EXPECT_FALSE(result.equal);
  EXPECT_GT(result.differing_rows, 0);
}

TEST_F(ReplayTest, RejectsRecordsThatCannotBeReplayedWithReason) {
  Record other = record_;
  other.device = kernels::DeviceKind::kCuda;
  const absl::Status device = ReplayRecord(*model_, other, models_.stream()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(device)) << device;
  EXPECT_THAT(std::string(device.message()), HasSubstr("another kind of device"));
  other = record_;
  other.sequences[0].token_ids[0] = 112;  // the first id after the vocabulary
  const absl::Status token = ReplayRecord(*model_, other, models_.stream()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(token)) << token;
  EXPECT_THAT(std::string(token.message()), HasSubstr("token id 112 is not in the model's vocabulary"));
}

}  // namespace
}  // namespace nibble::model
