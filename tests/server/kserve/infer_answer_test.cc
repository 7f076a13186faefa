#include "server/kserve/infer_answer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "server/base/json.h"
#include "tests/server/kserve/infer_message.h"

namespace nibble::kserve {
namespace {

using ::testing::ElementsAre;
using testing_support::NumberOf;
using testing_support::RawOutput;
using testing_support::TextsOf;

v1::GenerateReply Reply(const std::string& text) {
  v1::GenerateReply reply;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &reply)) << text;
  return reply;
}

InferCall AllOutputs(int n = 1) {
  InferCall call;
  call.request.set_model("m");
  call.id = "7";
  call.n = n;
  call.request.mutable_stopping()->set_max_tokens(100);
  call.finish_reason = call.cumulative_logprob = call.logprobs = call.num_input_tokens = call.num_output_tokens = true;
  return call;
}

TEST(InferAnswerTest, StreamHasAResponseForEachDeltaAndOneForTheEnd) {
  const InferCall call = AllOutputs();
  InferAnswer answer(call);
  EXPECT_FALSE(answer.Take(Reply("start { prompt_tokens: 5 queue_ms: 2 }")).has_value());
  auto response =
      answer.Take(Reply("delta { text: 'a' token_ids: 1 token_ids: 2 logprobs { logprob: -0.5 } "
                        "logprobs { logprob: -0.25 } }"));
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(response->model_name(), "m");
  EXPECT_EQ(response->model_version(), "1");
  EXPECT_EQ(response->id(), "7");
  EXPECT_THAT(TextsOf(*response, "text_output"), ElementsAre("a"));
  EXPECT_THAT(TextsOf(*response, "finish_reason"), ElementsAre("None"));
  EXPECT_THAT(TextsOf(*response, "logprobs"), ElementsAre("null")) << "the sampling parameters asked for none";
  EXPECT_EQ(NumberOf<float>(*response, "cumulative_logprob"), -0.75F);
  EXPECT_EQ(NumberOf<std::uint32_t>(*response, "num_input_tokens"), 5u);
  EXPECT_EQ(NumberOf<std::uint32_t>(*response, "num_output_tokens"), 2u);
  response = answer.Take(Reply("delta { text: 'b' token_ids: 3 logprobs { logprob: -1 } }"));
  EXPECT_EQ(NumberOf<float>(*response, "cumulative_logprob"), -1.75F) << "it is cumulative";
  EXPECT_EQ(NumberOf<std::uint32_t>(*response, "num_output_tokens"), 1u) << "it is not";
  EXPECT_FALSE(answer.Take(Reply("finish { reason: FINISH_REASON_EOS }")).has_value());
  EXPECT_FALSE(answer.Take(Reply("usage { prefill_ms: 3 decode_ms: 4 }")).has_value());
  const auto last = answer.Ended();
  EXPECT_THAT(TextsOf(last, "text_output"), ElementsAre(""));
  EXPECT_THAT(TextsOf(last, "finish_reason"), ElementsAre("stop"));
  EXPECT_EQ(NumberOf<std::uint32_t>(last, "num_output_tokens"), 0u);
  EXPECT_EQ(answer.queued(), absl::Milliseconds(2));
  EXPECT_EQ(answer.computed(), absl::Milliseconds(7));
  EXPECT_EQ(answer.Empty().outputs_size(), 0);
  EXPECT_EQ(answer.Empty().id(), "7");
}

// As those of vLLM's backend, whose clients expect the finish reason and a token in the last response.
TEST(InferAnswerTest, LastTokenAndTokensWithoutATextWaitForTheNextResponse) {
  InferCall call = AllOutputs();
  call.request.mutable_stopping()->set_max_tokens(4);
  InferAnswer answer(call);
  EXPECT_TRUE(answer.Take(Reply("delta { text: 'a' token_ids: 1 }")).has_value());
  EXPECT_FALSE(answer.Take(Reply("delta { token_ids: 2 }")).has_value()) << "half a character";
  auto response = answer.Take(Reply("delta { text: 'b' token_ids: 3 }"));
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(NumberOf<std::uint32_t>(*response, "num_output_tokens"), 2u);
  EXPECT_FALSE(answer.Take(Reply("delta { text: 'c' token_ids: 4 }")).has_value()) << "the last of max_tokens";
  EXPECT_FALSE(answer.Take(Reply("delta { text: 'd' }")).has_value()) << "held back by a stop string";
  EXPECT_FALSE(answer.Take(Reply("finish { reason: FINISH_REASON_LENGTH }")).has_value());
  response = answer.Ended();
  EXPECT_THAT(TextsOf(*response, "text_output"), ElementsAre("cd"));
  EXPECT_THAT(TextsOf(*response, "finish_reason"), ElementsAre("length"));
  EXPECT_EQ(NumberOf<std::uint32_t>(*response, "num_output_tokens"), 1u);
}

TEST(InferAnswerTest, TokensWithoutATextDoNotWaitForever) {
  const InferCall call = AllOutputs();
  InferAnswer answer(call);
  int waited = 0;
  while (!answer.Take(Reply("delta { token_ids: 2 }")).has_value()) ++waited;
  EXPECT_EQ(waited, 15);
}

TEST(InferAnswerTest, EveryOutputHasAnElement) {
  const InferCall call = AllOutputs(3);
  InferAnswer answer(call);
  const auto response = answer.Take(Reply("delta { index: 1 text: 'b' }"));
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(TextsOf(*response, "text_output"), ElementsAre("", "b", ""));
  EXPECT_FALSE(answer.Take(Reply("finish { index: 2 reason: FINISH_REASON_LENGTH }")).has_value());
  EXPECT_THAT(TextsOf(answer.Ended(), "finish_reason"), ElementsAre("None", "None", "length"));
}

TEST(InferAnswerTest, LogprobsAreVllmsDictionaries) {
  InferCall call = AllOutputs();
  call.has_logprobs = true;
  call.num_logprobs = 2;
  InferAnswer answer(call);
  const auto response =
      answer.Take(Reply("delta { text: 'z' token_ids: 4 logprobs { token_id: 4 logprob: -2 token: '\\xff' "
                        "top { token_id: 9 logprob: -1 token: 'x' } top { token_id: 8 logprob: -inf token: 'y' } "
                        "top { token_id: 7 logprob: -3 } } }"));
  ASSERT_TRUE(response.has_value());
  const auto json = base::ParseJson(TextsOf(*response, "logprobs").at(0));
  ASSERT_TRUE(json.ok()) << json.status();
  ASSERT_EQ(json->size(), 1u);
  const base::Json& token = json->front();
  EXPECT_EQ(token.size(), 3u) << "the alternatives that only show the rank are left out";
  EXPECT_EQ(token.begin().key(), "4") << "the token itself is first";
  EXPECT_EQ(token["4"]["logprob"], -2);
  EXPECT_TRUE(token["4"]["rank"].is_null()) << "it is not among the alternatives";
  EXPECT_EQ(token["4"]["decoded_token"], "\xEF\xBF\xBD");
  EXPECT_EQ(token["9"]["rank"], 1);
  EXPECT_EQ(token["8"]["rank"], 2);
  EXPECT_EQ(token["8"]["logprob"], -9999);
}

TEST(InferAnswerTest, WholeResponseHasAllOutputs) {
  InferCall call = AllOutputs(2);
  InferAnswer answer(call);
  v1::GenerateResponse whole;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "start { prompt_tokens: 3 } outputs { index: 0 text: 'pa' token_ids: 1 finish { reason: FINISH_REASON_LENGTH } } "
      "outputs { index: 1 text: 'pb' token_ids: 1 token_ids: 2 finish { reason: FINISH_REASON_STOP } }",
      &whole));
  const auto response = answer.Whole(whole);
  EXPECT_THAT(TextsOf(response, "text_output"), ElementsAre("pa", "pb"));
  EXPECT_THAT(TextsOf(response, "finish_reason"), ElementsAre("length", "stop"));
  EXPECT_EQ(RawOutput(response, "num_output_tokens"), std::string("\1\0\0\0\2\0\0\0", 8));
}

TEST(InferAnswerTest, OutputsThatWereNotAskedForAreAbsent) {
  InferCall call;
  call.request.mutable_stopping()->set_max_tokens(100);
  InferAnswer answer(call);
  const auto response = answer.Take(Reply("delta { text: 'a' }"));
  ASSERT_EQ(response->outputs_size(), 1);
  EXPECT_EQ(response->outputs(0).name(), "text_output");
}

}  // namespace
}  // namespace nibble::kserve
