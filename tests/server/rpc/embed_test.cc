// Embed: vectors of texts (InferenceService).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/server/rpc/inference_service_fixture.h"

namespace nibble {
namespace {

// The bits of "tiny8" do not depend on the other rows of a step. Those of "tiny" may, because the library computes its
// products.
class EmbedTest : public InferenceServiceTest {
 protected:
  void SetUp() override {
    InferenceServiceTest::SetUp();
    MakeInt8();
  }
  grpc::Status Embed(const v1::EmbedRequest& request, v1::EmbedResponse* response) {
    return Call(inference_, &v1::InferenceService::Stub::Embed, request, response);
  }
  v1::EmbedResponse Embedded(const v1::EmbedRequest& request) {
    v1::EmbedResponse response;
    const grpc::Status status = Embed(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::EmbedRequest Texts(const std::vector<std::string>& texts) {
    v1::EmbedRequest request;
    request.set_model("tiny8");
    for (const std::string& text : texts) request.add_texts(text);
    return request;
  }
  static std::vector<float> Values(const v1::Embedding& embedding) {
    return {embedding.values().begin(), embedding.values().end()};
  }
};

TEST_F(EmbedTest, VectorOfATextDoesNotDependOnTheOthers) {
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i) texts.push_back(std::string(static_cast<std::size_t>(1 + i * 7), 'a') + " b c");
  const v1::EmbedResponse together = Embedded(Texts(texts));
  ASSERT_EQ(together.embeddings_size(), 20);
  EXPECT_EQ(together.weights_digest().size(), 64u);
  for (int i = 0; i < 20; ++i) {
    const v1::EmbedResponse alone = Embedded(Texts({texts[static_cast<std::size_t>(i)]}));
    EXPECT_EQ(Values(together.embeddings(i)), Values(alone.embeddings(0))) << i;
    EXPECT_EQ(together.embeddings(i).tokens(), alone.embeddings(0).tokens());
    double squares = 0;
    for (const float value : Values(alone.embeddings(0)))
      squares += static_cast<double>(value) * static_cast<double>(value);
    EXPECT_NEAR(squares, 1, 1e-5);
  }
}

// A causal model: the state of a token does not depend on the tokens after it.
TEST_F(EmbedTest, MeanIsTheMeanOfTheLastStatesOfThePrefixes) {
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  v1::EmbedRequest request;
  request.set_model("tiny8");
  request.set_normalize(false);
  request.set_pooling(v1::POOLING_LAST);
  for (std::size_t n = 1; n <= ids.size(); ++n)
    request.add_token_ids()->mutable_ids()->Add(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
  const v1::EmbedResponse prefixes = Embedded(request);
  request.mutable_token_ids()->DeleteSubrange(0, static_cast<int>(ids.size()) - 1);
  request.set_pooling(v1::POOLING_MEAN);
  const v1::EmbedResponse mean = Embedded(request);
  ASSERT_EQ(mean.embeddings(0).tokens(), static_cast<int>(ids.size()));
  const int size = mean.embeddings(0).values_size();
  ASSERT_GT(size, 0);
  for (int c = 0; c < size; ++c) {
    double sum = 0;
    for (const v1::Embedding& prefix : prefixes.embeddings()) sum += static_cast<double>(prefix.values(c));
    EXPECT_EQ(mean.embeddings(0).values(c), static_cast<float>(sum / static_cast<double>(ids.size()))) << c;
  }
}

TEST_F(EmbedTest, WrongRequestsAreRefusedByField) {
  const auto error = [&](const v1::EmbedRequest& request) {
    v1::EmbedResponse response;
    const grpc::Status status = Embed(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(error(Texts({})), HasSubstr("texts: wanted either texts or token_ids"));
  v1::EmbedRequest both = Texts({"a"});
  both.add_token_ids()->add_ids(1);
  EXPECT_THAT(error(both), HasSubstr("texts: wanted either"));
  EXPECT_THAT(error(Texts({"a", ""})), HasSubstr("texts[1]: has no tokens"));
  EXPECT_THAT(error(Texts({"a", std::string(10'000, 'x')})), HasSubstr("texts[1]: has "));
  EXPECT_THAT(error(Texts(std::vector<std::string>(2049, "a"))), HasSubstr("has 2049 texts, wanted at most 2048"));
  v1::EmbedRequest pooling = Texts({"a"});
  pooling.set_pooling(static_cast<v1::Pooling>(9));
  EXPECT_THAT(error(pooling), HasSubstr("pooling: is 9"));
  v1::EmbedRequest model = Texts({"a"});
  model.clear_model();
  EXPECT_THAT(error(model), HasSubstr("model: is empty"));
  v1::EmbedRequest id = Texts({});
  id.add_token_ids()->add_ids(1 << 30);
  v1::EmbedResponse response;
  EXPECT_EQ(Embed(id, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(EmbedTest, ManyTextsDoNotFillTheQueue) {
  EXPECT_EQ(Embedded(Texts(std::vector<std::string>(500, "a b"))).embeddings_size(), 500)
      << "the engine has only a few texts of a call at a time";
}

}  // namespace
}  // namespace nibble
