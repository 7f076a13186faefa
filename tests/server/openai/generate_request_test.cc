#include "server/openai/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace nibble::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

base::Json Merged(base::Json base, const std::string& fields) {
  base.update(base::ParseJson(fields).value());
  return base;
}
base::Json Completion(const std::string& fields) { return Merged({{"model", "m"}, {"prompt", "p"}}, fields); }
base::Json Chat(const std::string& fields) {
  return Merged(base::ParseJson(R"({"model":"m","messages":[{"role":"user","content":"Hi"}]})").value(), fields);
}

std::string ErrorOf(const absl::StatusOr<GenerateCall>& call) { return std::string(call.status().message()); }

std::string Repeated(const std::string& element, int count) {
  std::string out = element;
  for (int i = 1; i < count; ++i) out += "," + element;
  return out;
}
std::string Biases(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  return out;
}

TEST(GenerateRequestTest, DefaultsAreOpenAis) {
  const auto call = ParseCompletion(Completion("{}"));
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_EQ(call->prompts.size(), 1u);
  const v1::GenerateRequest& request = call->prompts[0];
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.text(), "p");
  EXPECT_EQ(request.sampling().temperature(), 1) << "the gRPC API is greedy by default";
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_EQ(request.stopping().max_tokens(), 16);
  EXPECT_FALSE(request.output().has_logprobs());
  EXPECT_FALSE(call->stream);
}

TEST(GenerateRequestTest, TranslatesEveryFieldOfACompletion) {
  const auto call = ParseCompletion(Completion(R"({
    "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.2, "seed": 7, "n": 3,
    "logit_bias": {"5": -100}, "stop": ["a", "b"], "max_tokens": 4, "logprobs": 2, "echo": true, "stream": true,
    "stream_options": {"include_usage": true}, "top_k": -1, "min_p": 0.05, "repetition_penalty": 1.1, "min_tokens": 2,
    "ignore_eos": true, "include_stop_str_in_output": true, "stop_token_ids": [9], "skip_special_tokens": false,
    "priority": -5, "user": "u", "metadata": {"k": "v"}, "store": false, "service_tier": "auto", "best_of": 1,
    "suffix": null})"));
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(call->stream && call->include_usage && call->echo);
  EXPECT_EQ(call->n, 3);
  EXPECT_EQ(call->logprobs, 2);
  const v1::GenerateRequest& request = call->prompts[0];
  const v1::Sampling& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5);
  EXPECT_EQ(sampling.top_p(), 0.9);
  EXPECT_EQ(sampling.top_k(), 0) << "-1 means all tokens, which is 0 here";
  EXPECT_EQ(sampling.min_p(), 0.05);
  EXPECT_EQ(sampling.presence_penalty(), 0.1);
  EXPECT_EQ(sampling.frequency_penalty(), 0.2);
  EXPECT_EQ(sampling.repetition_penalty(), 1.1);
  EXPECT_EQ(sampling.seed(), 7);
  EXPECT_EQ(sampling.n(), 3);
  EXPECT_EQ(sampling.logit_bias().at(5), -100);
  const v1::Stopping& stopping = request.stopping();
  EXPECT_THAT(stopping.stop(), ElementsAre("a", "b"));
  EXPECT_THAT(stopping.stop_token_ids(), ElementsAre(9));
  EXPECT_EQ(stopping.max_tokens(), 4);
  EXPECT_EQ(stopping.min_tokens(), 2);
  EXPECT_TRUE(stopping.ignore_eos() && stopping.include_stop());
  EXPECT_EQ(request.output().logprobs(), 2);
  EXPECT_EQ(request.output().prompt_logprobs(), 2);
  EXPECT_TRUE(request.output().echo() && request.output().include_special_tokens());
  EXPECT_EQ(request.priority(), -5);
}

TEST(GenerateRequestTest, PromptIsATextIdsOrAnArrayOfThese) {
  const auto prompts = [](const std::string& prompt) {
    return ParseCompletion(Completion(R"({"prompt":)" + prompt + "}"));
  };
  EXPECT_EQ(prompts(R"("one")")->prompts.size(), 1u);
  EXPECT_EQ(prompts(R"(["one","two"])")->prompts[1].text(), "two");
  EXPECT_THAT(prompts("[1,2,3]")->prompts[0].token_ids().ids(), ElementsAre(1, 2, 3));
  const auto both = prompts("[[1,2],[3]]");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->prompts[1].token_ids().ids(), ElementsAre(3));
  for (const char* wrong : {"1", "{}", "[1,\"a\"]", "[[\"a\"]]", "[-1]", "[1.5]", "[4294967296]", "[null]"}) {
    EXPECT_THAT(ErrorOf(prompts(wrong)), HasSubstr("prompt: wanted")) << wrong;
  }
  EXPECT_THAT(ErrorOf(prompts("[]")), HasSubstr("is an empty array"));
  EXPECT_THAT(ErrorOf(prompts("null")), HasSubstr("prompt: wanted"));
  base::Json many = base::Json::array();
  for (std::size_t i = 0; i <= kMaxPrompts; ++i) many.push_back("p");
  EXPECT_THAT(ErrorOf(prompts(base::Dump(many))), HasSubstr("has 2049 prompts, wanted at most 2048"));
}

TEST(GenerateRequestTest, NoTokensScoreThePrompt) {
  const auto call = ParseCompletion(Completion(R"({"max_tokens":0,"echo":true,"logprobs":1})"));
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(call->score_only);
  EXPECT_EQ(call->prompts[0].stopping().max_tokens(), 1) << "the gRPC API generates at least one";
  EXPECT_THAT(ErrorOf(ParseCompletion(Completion(R"({"max_tokens":0})"))),
              HasSubstr("max_tokens: is 0, wanted at least 1"));
}

TEST(GenerateRequestTest, RefusesByNameWhatIsNotSupported) {
  const std::vector<std::pair<std::string, std::string>> completions = {
      {R"({"best_of":2})", "best_of"},
      {R"({"suffix":"x"})", "suffix"},
      {R"({"store":true})", "store"},
      {R"({"service_tier":"flex"})", "service_tier"},
      {R"({"n":0})", "n"},
      {R"({"n":17})", "n"},
      {R"({"stop":["1","2","3","4","5"]})", "stop"},
      {R"({"stop":[1]})", "stop"},
      {R"({"logit_bias":{"x":1}})", "logit_bias"},
      {R"({"logit_bias":{"1":"x"}})", "logit_bias"},
      {R"({"stream_options":{"include_usage":true}})", "stream_options"},
      {R"({"stream":true,"stream_options":{"usage":true}})", "stream_options.usage"},
      {R"({"model":""})", "model"},
      {R"({"temperature":"hot"})", "temperature"},
      {R"({"seed":1.5})", "seed"},
      // Each of up to 2048 prompts has a copy of these.
      {R"({"stop":[")" + std::string(257, 'x') + R"("]})", "stop"},
      {R"({"stop_token_ids":[)" + Repeated("1", 129) + "]}", "stop_token_ids"},
      {R"({"logit_bias":{)" + Biases(301) + "}}", "logit_bias"},
      {R"({"model":")" + std::string(129, 'm') + R"("})", "model"},
  };
  for (const auto& [fields, name] : completions) {
    EXPECT_THAT(ErrorOf(ParseCompletion(Completion(fields))), ::testing::StartsWith(name + ": ")) << fields;
  }
  const std::vector<std::pair<std::string, std::string>> chats = {
      {R"({"tools":[{"type":"function"}]})", "tools[0].function"},
      {R"({"tool_choice":"any"})", "tool_choice"},
      {R"({"functions":[{"name":"f"}]})", "functions"},
      {R"({"function_call":"auto"})", "function_call"},
      {R"({"response_format":{"type":"json"}})", "response_format.type"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"a"}}})",
       "response_format.json_schema.schema"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})", "response_format.json_schema.name"},
      {R"({"response_format":{"type":"json_object"},"guided_regex":"a"})", "guided_regex"},
      {R"({"structured_outputs":{"regex":"a","choice":["b"]}})", "structured_outputs.choice"},
      {R"({"structured_outputs":{"choice":[]}})", "structured_outputs.choice"},
      {R"({"structured_outputs":{"expression":"a"}})", "structured_outputs.expression"},
      {R"({"top_logprobs":2})", "top_logprobs"},
      {R"({"max_tokens":1,"max_completion_tokens":2})", "max_tokens"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}]})", "messages[0].content"},
      {R"({"echo":true})", "echo"},
  };
  for (const auto& [fields, name] : chats) {
    EXPECT_THAT(ErrorOf(ParseChat(Chat(fields))), ::testing::StartsWith(name + ": ")) << fields;
  }
}

TEST(GenerateRequestTest, ConstraintsOfOpenAIAndVllmAreThoseOfTheGrpcApi) {
  const auto constrained = [](const std::string& fields) {
    const auto call = ParseChat(Chat(fields));
    EXPECT_TRUE(call.ok()) << call.status();
    return call.ok() ? call->prompts.front() : v1::GenerateRequest();
  };
  EXPECT_EQ(constrained(R"({"response_format":{"type":"json_object"}})").json_schema(), R"({"type":"object"})");
  EXPECT_EQ(constrained(R"({"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,
                            "schema":{"type":"integer"}}}})")
                .json_schema(),
            R"({"type":"integer"})");
  EXPECT_EQ(constrained(R"({"response_format":{"type":"text"}})").constraint_case(),
            v1::GenerateRequest::CONSTRAINT_NOT_SET);
  EXPECT_EQ(constrained(R"({"guided_json":{"type":"null"}})").json_schema(), R"({"type":"null"})");
  EXPECT_EQ(constrained(R"({"structured_outputs":{"regex":"a+"}})").regex(), "a+");
  EXPECT_EQ(constrained(R"({"structured_outputs":{"grammar":"start: \"a\""}})").lark(), "start: \"a\"");
  EXPECT_EQ(constrained(R"({"guided_choice":["a","b"]})").choice().choices_size(), 2);
  const auto completion = ParseCompletion(Completion(R"({"structured_outputs":{"regex":"a+"}})"));
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(completion->prompts.front().regex(), "a+");
  EXPECT_EQ(completion->constraint_field, "structured_outputs.regex");
}

TEST(GenerateRequestTest, ChatJoinsPartsAndKnowsTheDeveloperRole) {
  const auto call = ParseChat(Chat(R"({"messages":[{"role":"developer","content":"Be brief."},
      {"role":"user","name":"ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
      "logprobs":true,"top_logprobs":3,"parallel_tool_calls":true,"response_format":{"type":"text"},"tools":[]})"));
  ASSERT_TRUE(call.ok()) << call.status();
  const auto& messages = call->prompts[0].chat().messages();
  ASSERT_EQ(messages.size(), 2);
  EXPECT_EQ(messages[0].role(), "system");
  EXPECT_EQ(messages[1].content(), "ab");
  EXPECT_EQ(call->prompts[0].output().logprobs(), 3);
}

TEST(GenerateRequestTest, ChatWithoutALimitEndsAtTheModelsLastPosition) {
  EXPECT_EQ(ParseChat(Chat("{}"))->prompts[0].stopping().max_tokens(), INT32_MAX);
  EXPECT_EQ(ParseChat(Chat(R"({"max_tokens":5})"))->prompts[0].stopping().max_tokens(), 5);
  const auto renamed = ParseChat(Chat(R"({"max_completion_tokens":6})"));
  EXPECT_EQ(renamed->prompts[0].stopping().max_tokens(), 6);
  EXPECT_EQ(renamed->max_tokens_field, "max_completion_tokens");
}

}  // namespace
}  // namespace nibble::openai
