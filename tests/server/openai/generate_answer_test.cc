#include "server/openai/generate_answer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "server/base/json.h"

namespace nibble::openai {
namespace {

using base::Json;

v1::GenerateReply Reply(const std::string& text) {
  v1::GenerateReply reply;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &reply)) << text;
  return reply;
}

constexpr char kStart[] = R"(start { prompt_tokens: 3 weights_digest: "0123456789abcdef" })";
constexpr char kUsage[] = "usage { completion_tokens: 2 }";

GenerateCall Call(const std::string& body, bool chat) {
  const Json json = base::ParseJson(body).value();
  return chat ? ParseChat(json).value() : ParseCompletion(json).value();
}

// The JSON of each event of a text of server-sent events; "[DONE]" as a string.
std::vector<Json> Events(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    EXPECT_EQ(text.compare(at, 6, "data: "), 0) << text.substr(at);
    const std::string data = text.substr(at + 6, end - at - 6);
    events.push_back(data == "[DONE]" ? Json(data) : base::ParseJson(data).value());
    at = end + 2;
  }
  return events;
}

TEST(GenerateAnswerTest, WholeCompletionHasAChoiceForEachOutputOfEachPrompt) {
  const GenerateCall call = Call(R"({"model":"m","prompt":["a","b"],"n":2})", false);
  GenerateAnswer answer(call, "req-1", absl::FromUnixSeconds(100));
  for (const std::size_t prompt : {1u, 0u}) {
    EXPECT_EQ(answer.Take(prompt, Reply(kStart)), "");
    for (const int output : {0, 1}) {
      const std::string index = "index: " + std::to_string(output);
      const std::string text = std::to_string(prompt) + "/" + std::to_string(output);
      answer.Take(prompt, Reply("delta { " + index + " text: '" + text + "' }"));
      answer.Take(prompt, Reply("finish { " + index +
                                (output == 0 ? " reason: FINISH_REASON_EOS }" : " reason: FINISH_REASON_LENGTH }")));
    }
    answer.Take(prompt, Reply(kUsage));
  }
  const Json json = base::ParseJson(answer.Whole()).value();
  EXPECT_EQ(json["id"], "cmpl-req-1");
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["created"], 100);
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["system_fingerprint"], "fp_0123456789ab");
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][3], Json::parse(R"({"index":3,"text":"1/1","logprobs":null,"finish_reason":"length"})"));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(json["usage"]["total_tokens"], 10);
}

TEST(GenerateAnswerTest, ChatStreamBeginsWithTheRoleAndEndsWithUsage) {
  const GenerateCall call = Call(R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,
                                     "stream_options":{"include_usage":true}})",
                                 true);
  GenerateAnswer answer(call, "req-1", absl::FromUnixSeconds(100));
  std::string text = answer.Take(0, Reply(kStart));
  text += answer.Take(0, Reply("delta { text: 'Hi \"you\"' token_ids: 1 }"));
  text += answer.Take(0, Reply("delta { text: '' token_ids: 2 }"));  // text held back
  text += answer.Take(0, Reply("finish { reason: FINISH_REASON_STOP }"));
  text += answer.Take(0, Reply(kUsage));
  text += answer.LastEvents();
  const std::vector<Json> events = Events(text);
  ASSERT_EQ(events.size(), 5u) << text;
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":"Hi \"you\""})"));
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(events[1]["usage"], nullptr);
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[3]["choices"].empty());
  EXPECT_EQ(events[3]["usage"]["total_tokens"], 5);
  EXPECT_EQ(events[4], "[DONE]");
}

TEST(GenerateAnswerTest, CompletionLogprobsIncludeTheTokenItself) {
  const GenerateCall call = Call(R"({"model":"m","prompt":"a","echo":true,"logprobs":1})", false);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  answer.Take(0, Reply(R"(prompt_logprobs { tokens { token_id: 1 token: "\303\244" }
      tokens { token_id: 2 token: "b" logprob: -2 top { token_id: 3 token: "c" logprob: -0.5 } } })"));
  answer.Take(0, Reply(R"(delta { text: "\303\244b" })"));
  answer.Take(0, Reply(R"(delta { text: "" token_ids: 4 logprobs { token_id: 4 token: "\342\202" logprob: -inf
      top { token_id: 4 token: "\342\202" logprob: -inf } } })"));
  answer.Take(0, Reply("finish { reason: FINISH_REASON_LENGTH }"));
  const Json logprobs = base::ParseJson(answer.Whole()).value()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["ä","b","bytes:\\xe2\\x82"])"));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[0.0,-2.0,-9999.0]"));
  EXPECT_EQ(logprobs["top_logprobs"], Json::parse(R"([{"ä":0.0},{"c":-0.5,"b":-2.0},{"bytes:\\xe2\\x82":-9999.0}])"));
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0,1,2]")) << "in characters";
}

TEST(GenerateAnswerTest, OfTwoTokensWithOneTextTheLikelierCounts) {
  const GenerateCall call = Call(R"({"model":"m","prompt":"a","logprobs":1})", false);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  answer.Take(0, Reply(R"(delta { text: "x" token_ids: 4 logprobs { token_id: 4 token: "x" logprob: -3
      top { token_id: 5 token: "x" logprob: -1 } } })"));
  answer.Take(0, Reply("finish { }"));
  const Json logprobs = base::ParseJson(answer.Whole()).value()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["top_logprobs"], Json::parse(R"([{"x":-1.0}])"));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[-3.0]")) << "the drawn token was not the greedy one";
}

TEST(GenerateAnswerTest, ChatLogprobsHaveBytes) {
  const GenerateCall call = Call(R"({"model":"m","messages":[{"role":"user","content":"x"}],"logprobs":true,
                                     "top_logprobs":1})",
                                 true);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  answer.Take(0, Reply(R"(delta { text: "" token_ids: 4 logprobs { token_id: 4 token: "\342" logprob: -1
      top { token_id: 5 token: "a" logprob: -0.5 } } })"));
  answer.Take(0, Reply("finish { }"));
  const Json choice = base::ParseJson(answer.Whole()).value()["choices"][0];
  EXPECT_EQ(choice["message"], Json::parse(R"({"role":"assistant","content":"","refusal":null})"));
  const Json token = choice["logprobs"]["content"][0];
  EXPECT_EQ(token["bytes"], Json::parse("[226]"));
  EXPECT_EQ(token["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(token["top_logprobs"][0], Json::parse(R"({"token":"a","logprob":-0.5,"bytes":[97]})"));
}

TEST(GenerateAnswerTest, ScoreDropsTheGeneratedToken) {
  const GenerateCall call = Call(R"({"model":"m","prompt":"ab","echo":true,"max_tokens":0,"logprobs":0})", false);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  answer.Take(0, Reply(R"(prompt_logprobs { tokens { token: "a" } tokens { token: "b" logprob: -1 } })"));
  answer.Take(0, Reply("delta { text: 'ab' }"));
  answer.Take(0, Reply("delta { text: 'Z' token_ids: 9 logprobs { token_id: 9 token: 'Z' logprob: -1 } }"));
  answer.Take(0, Reply("finish { reason: FINISH_REASON_EOS }"));
  answer.Take(0, Reply(kUsage));
  const Json json = base::ParseJson(answer.Whole()).value();
  EXPECT_EQ(json["choices"][0]["text"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 2u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

constexpr char kToolChat[] = R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":)";

std::vector<v1::GenerateReply> RepliesWithCalls() {
  return {Reply(kStart),
          Reply("delta { text: 'I look.' token_ids: 1 }"),
          Reply("delta { token_ids: 2 }"),
          Reply("delta { token_ids: 3 tool_calls { index: 0 id: 'call_a' name: 'now' arguments: '{' } }"),
          Reply("delta { token_ids: 4 tool_calls { arguments: '\"a\": 1}' } "
                "tool_calls { index: 1 id: 'call_b' name: 'then' arguments: '{}' } }"),
          Reply("finish { reason: FINISH_REASON_TOOL_CALLS }"),
          Reply(kUsage)};
}

TEST(GenerateAnswerTest, StreamedCallHasItsNameOnceAndThenPiecesOfArguments) {
  const GenerateCall call = Call(kToolChat + std::string("true}"), true);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  std::string text;
  for (const v1::GenerateReply& reply : RepliesWithCalls()) text += answer.Take(0, reply);
  const std::vector<Json> events = Events(text + answer.LastEvents());
  std::vector<Json> deltas;
  for (const Json& event : events) {
    if (event.is_object()) deltas.push_back(event["choices"][0]["delta"]);
  }
  ASSERT_EQ(deltas.size(), 8u) << text;
  EXPECT_EQ(deltas[0], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(deltas[1], Json::parse(R"({"content":"I look."})"));
  EXPECT_EQ(deltas[2], Json::parse(R"({"tool_calls":[{"index":0,"id":"call_a","type":"function",
                                       "function":{"name":"now","arguments":""}}]})"));
  EXPECT_EQ(deltas[3], Json::parse(R"({"tool_calls":[{"index":0,"function":{"arguments":"{"}}]})"));
  EXPECT_EQ(deltas[4], Json::parse(R"({"tool_calls":[{"index":0,"function":{"arguments":"\"a\": 1}"}}]})"));
  EXPECT_EQ(deltas[5]["tool_calls"][0]["id"], "call_b");
  EXPECT_EQ(deltas[6], Json::parse(R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})"));
}

TEST(GenerateAnswerTest, WholeAnswerHasItsCallsAndNullInsteadOfEmptyContent) {
  const GenerateCall call = Call(kToolChat + std::string("false}"), true);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  for (const v1::GenerateReply& reply : RepliesWithCalls()) EXPECT_EQ(answer.Take(0, reply), "");
  const Json choice = base::ParseJson(answer.Whole()).value()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"], Json::parse(R"({"role":"assistant","content":"I look.","refusal":null,"tool_calls":[
      {"id":"call_a","type":"function","function":{"name":"now","arguments":"{\"a\": 1}"}},
      {"id":"call_b","type":"function","function":{"name":"then","arguments":"{}"}}]})"));
  EXPECT_GT(answer.num_bytes(), 30u) << "calls count too";
  GenerateAnswer silent(call, "r", absl::UnixEpoch());
  silent.Take(0, Reply("delta { tool_calls { id: 'c' name: 'now' arguments: '{}' } }"));
  silent.Take(0, Reply("finish { reason: FINISH_REASON_TOOL_CALLS }"));
  EXPECT_EQ(base::ParseJson(silent.Whole()).value()["choices"][0]["message"]["content"], nullptr);
}

TEST(GenerateAnswerTest, MalformedCallIsContent) {
  for (const bool stream : {true, false}) {
    const GenerateCall call = Call(kToolChat + std::string(stream ? "true}" : "false}"), true);
    GenerateAnswer answer(call, "r", absl::UnixEpoch());
    answer.Take(0, Reply("delta { tool_calls { id: 'c' name: 'now' arguments: '{' } }"));
    const std::string rest =
        answer.Take(0, Reply("delta { text: 'raw' tool_calls { arguments: 'x' malformed: true } }"));
    answer.Take(0, Reply("finish { reason: FINISH_REASON_EOS }"));
    if (stream) {
      ASSERT_EQ(Events(rest).size(), 1u) << rest;
      EXPECT_EQ(Events(rest)[0]["choices"][0]["delta"], Json::parse(R"({"content":"raw"})"));
    } else {
      const Json choice = base::ParseJson(answer.Whole()).value()["choices"][0];
      EXPECT_EQ(choice["message"], Json::parse(R"({"role":"assistant","content":"raw","refusal":null})"));
      EXPECT_EQ(choice["finish_reason"], "stop");
    }
  }
}

TEST(GenerateAnswerTest, LogprobsOfACallComeWithItsFirstEvent) {
  const GenerateCall call = Call(R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,
                                     "logprobs":true})",
                                 true);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  const std::string logprobs = " token_ids: 1 logprobs { token_id: 1 token: 'a' logprob: -1 } }";
  const auto events =
      Events(answer.Take(0, Reply("delta { tool_calls { id: 'c' name: 'now' arguments: '{' }" + logprobs)));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(events[1]["choices"][0]["logprobs"], nullptr);
  const auto held = Events(answer.Take(0, Reply("delta { " + logprobs)));
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0]["choices"][0]["delta"], Json::parse(R"({"content":""})"));
}

TEST(GenerateAnswerTest, CountsTheBytesThatItCollects) {
  const GenerateCall call = Call(R"({"model":"m","prompt":"a"})", false);
  GenerateAnswer answer(call, "r", absl::UnixEpoch());
  answer.Take(0, Reply(kStart));
  answer.Take(0, Reply("delta { text: '" + std::string(1000, 'x') + "' token_ids: 1 }"));
  EXPECT_GE(answer.num_bytes(), 1000u);
}

}  // namespace
}  // namespace nibble::openai
