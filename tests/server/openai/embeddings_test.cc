#include "server/openai/embeddings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

absl::StatusOr<EmbeddingsCall> ParseBody(const std::string& text) {
  return ParseEmbeddings(base::ParseJson(text).value());
}

TEST(EmbeddingsTest, InputIsATextIdsOrAnArrayOfThese) {
  EXPECT_THAT(ParseBody(R"({"model":"m","input":"a"})")->request.texts(), ElementsAre("a"));
  EXPECT_THAT(ParseBody(R"({"model":"m","input":["a","b"]})")->request.texts(), ElementsAre("a", "b"));
  EXPECT_THAT(ParseBody(R"({"model":"m","input":[1,2]})")->request.token_ids(0).ids(), ElementsAre(1, 2));
  EXPECT_EQ(ParseBody(R"({"model":"m","input":[[1],[2,3]]})")->request.token_ids_size(), 2);
  for (const char* input : {"1", "{}", "[]", "[\"a\",[1]]", "[-1]", "[1.5]", "null", "[null]"}) {
    EXPECT_THAT(std::string(ParseBody(std::string(R"({"model":"m","input":)") + input + "}").status().message()),
                StartsWith("input: "))
        << input;
  }
}

TEST(EmbeddingsTest, RefusesByNameWhatIsNotSupported) {
  const auto error = [](const std::string& fields) {
    return std::string(ParseBody(R"({"model":"m","input":"a",)" + fields + "}").status().message());
  };
  EXPECT_THAT(error(R"("dimensions":8)"), StartsWith("dimensions: "));
  EXPECT_THAT(error(R"("encoding_format":"int8")"), StartsWith("encoding_format: "));
  EXPECT_THAT(error(R"("pooling":"max")"), StartsWith("pooling: "));
  EXPECT_THAT(error(R"("prompt":"a")"), StartsWith("prompt: "));
}

TEST(EmbeddingsTest, VectorsAreNumbersOrBase64) {
  v1::EmbedResponse response;
  response.add_embeddings()->set_tokens(3);
  response.mutable_embeddings(0)->add_values(1.0F);
  response.mutable_embeddings(0)->add_values(-0.5F);
  EmbeddingsCall call = ParseBody(R"({"model":"m","input":"a"})").value();
  EXPECT_EQ(base::ParseJson(EmbeddingsJson(call, response)).value(),
            base::Json::parse(R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.0,-0.5]}],
                                  "model":"m","usage":{"prompt_tokens":3,"total_tokens":3}})"));
  call.base64 = true;
  EXPECT_EQ(base::ParseJson(EmbeddingsJson(call, response)).value()["data"][0]["embedding"], "AACAPwAAAL8=");
}

}  // namespace
}  // namespace nibble::openai
