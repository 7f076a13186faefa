#include "server/model/trainer_logprobs.h"

#include <gmock/gmock.h>

#include <cmath>

#include "kernels/ops/loss/log_softmax_gather.h"
#include "server/model/forward.h"
#include "tests/server/model/small_models.h"
#include "tests/support/plain_library.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

class TrainerLogprobsTest : public testing::Test {
 protected:
  void SetUp() override {
    stream_.library = &library_;
    model_ = models_.Load(models_.nf4());
  }

  // The logprobs of the tokens, computed in double from each row's logits.
  std::vector<float> Logprobs(const std::vector<std::int32_t>& tokens) {
    std::vector<float> logprobs;
    const auto visit = [&](std::int64_t first, const kernels::Matrix& logits) {
      for (std::int64_t r = 0; r < logits.rows && first + r + 1 < static_cast<std::int64_t>(tokens.size()); ++r) {
        const float* row = logits.Row<float>(r);
        double sum = 0;
        for (std::int64_t v = 0; v < logits.cols; ++v) sum += std::exp(static_cast<double>(row[v]));
        logprobs.push_back(static_cast<float>(row[tokens[static_cast<std::size_t>(first + r + 1)]] - std::log(sum)));
      }
      return absl::OkStatus();
    };
    EXPECT_TRUE(ForEachLogits(model_->config(), model_->weights(), tokens, /*chunk=*/7, stream_, visit).ok());
    return logprobs;
  }
  double Difference(const TrainerLogprobs& trained) {
    const auto difference = MaxLogprobDifference(*model_, trained, stream_);
    EXPECT_TRUE(difference.ok()) << difference.status();
    return difference.value_or(-1);
  }

  SmallModels models_;
  support::PlainLibrary library_;
  kernels::Stream stream_ = models_.stream();
  std::shared_ptr<const LoadedModel> model_;
  base::FileSystem& files_ = base::RealFileSystem();
};

// 40 tokens make three chunks (kChunk is 16), of which the last is not full.
TEST_F(TrainerLogprobsTest, FindsTheLargestDifferenceAtAnyPosition) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(i * 7 % 100);
  TrainerLogprobs trained;
  trained.sequences.push_back({tokens, Logprobs(tokens)});
  trained.sequences.push_back({{5}, {}});
  ASSERT_EQ(trained.sequences[0].logprobs.size(), 39u);
  EXPECT_LT(Difference(trained), 1e-5);
  for (const std::size_t at : {0u, 15u, 16u, 38u}) {
    TrainerLogprobs changed = trained;
    changed.sequences[0].logprobs[at] -= 0.25f;
    EXPECT_NEAR(Difference(changed), 0.25, 1e-4) << at;
  }
  EXPECT_EQ(Difference({}), 0);
}

TEST_F(TrainerLogprobsTest, WrittenLogprobsAreReadBack) {
  const TrainerLogprobs written{{{{1, 2, 3}, {-0.1f, -7.25f}}, {{4}, {}}}};
  ASSERT_TRUE(WriteTrainerLogprobs(files_, models_.nf4(), written).ok());
  const auto read = ReadTrainerLogprobs(files_, models_.nf4());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->sequences.size(), 2u);
  EXPECT_EQ(read->sequences[0].token_ids, written.sequences[0].token_ids);
  EXPECT_EQ(read->sequences[0].logprobs, written.sequences[0].logprobs);
  EXPECT_EQ(read->sequences[1].token_ids, written.sequences[1].token_ids);
  EXPECT_TRUE(read->sequences[1].logprobs.empty());
}

TEST_F(TrainerLogprobsTest, RejectsMalformedFiles) {
  EXPECT_TRUE(absl::IsNotFound(ReadTrainerLogprobs(files_, models_.nf4()).status()));
  for (const char* text :
       {"", "[]", "{}", R"({"sequences": 3})", R"({"sequences": [3]})", R"({"sequences": [{"token_ids": [1, 2]}]})",
        R"({"sequences": [{"token_ids": [1, 2], "logprobs": []}]})",
        R"({"sequences": [{"token_ids": [1.5, 2], "logprobs": [-1]}]})",
        R"({"sequences": [{"token_ids": [1, 2], "logprobs": ["a"]}]})",
        R"({"sequences": [{"token_ids": [4294967297, 2], "logprobs": [-1]}]})",
        R"({"sequences": [{"token_ids": [-1, 2], "logprobs": [-1]}]})",
        R"({"sequences": [{"token_ids": [], "logprobs": []}]})"}) {
    const std::string path = base::JoinPath(models_.nf4(), kTrainerLogprobsFile);
    ASSERT_TRUE(base::WriteFileAtomically(files_, path, text).ok());
    const absl::Status status = ReadTrainerLogprobs(files_, models_.nf4()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << text << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kTrainerLogprobsFile));
  }
}

TEST_F(TrainerLogprobsTest, RejectsTokensOutsideTheVocabulary) {
  const TrainerLogprobs foreign{{{{1, static_cast<std::int32_t>(model_->config().vocab_size)}, {-1.0f}}}};
  EXPECT_TRUE(absl::IsInvalidArgument(MaxLogprobDifference(*model_, foreign, stream_).status()));
}

}  // namespace
}  // namespace nibble::model
