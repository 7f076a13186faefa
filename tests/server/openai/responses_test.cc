#include "server/openai/responses.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/openai/api_error.h"
#include "server/openai/response_answer.h"

namespace nibble::openai {
namespace {

using base::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOwner[] = "ann";

class ResponsesTest : public ::testing::Test {
 protected:
  absl::StatusOr<PreparedResponse> Prepare(const std::string& fields, const std::string& owner = kOwner,
                                           std::size_t max_conversation_bytes = 4000) {
    return PrepareResponse(base::ParseJson(R"({"model":"m",)" + fields + "}").value(), owner, store_,
                           max_conversation_bytes);
  }
  std::string Error(const std::string& fields, const std::string& owner = kOwner) {
    return std::string(Prepare(fields, owner).status().message());
  }
  // "role: content" of each message that the model gets.
  static std::vector<std::string> Messages(PreparedResponse prepared) {
    EXPECT_TRUE(AddMessages(prepared.call, prepared.previous.get()).ok());
    std::vector<std::string> messages;
    for (const v1::ChatMessage& message : prepared.call.generate.prompts.front().chat().messages()) {
      std::string text = message.role() + ": " + message.content();
      for (const v1::ToolCall& call : message.tool_calls())
        text += " " + call.id() + "=" + call.name() + call.arguments();
      if (!message.tool_call_id().empty()) text += " <- " + message.tool_call_id() + "=" + message.name();
      messages.push_back(text);
    }
    return messages;
  }
  static void Take(ResponseAnswer& answer, std::string& events, const std::string& reply) {
    v1::GenerateReply message;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(reply, &message)) << reply;
    events += answer.Take(0, message);
  }
  ResponseAnswer Answer(PreparedResponse prepared, ResponseStore* store) {
    return {std::move(prepared.call),
            {.store = store, .owner = kOwner, .previous = std::move(prepared.previous)},
            absl::FromUnixSeconds(100)};
  }
  // Answers the request with this text, and returns the response.
  Json Run(const std::string& fields, const std::string& text, bool store = true) {
    ResponseAnswer answer = Answer(Prepare(fields).value(), store ? &store_ : nullptr);
    std::string events;
    Take(answer, events, kStart);
    Take(answer, events, "delta { text: '" + text + "' token_ids: 1 }");
    Take(answer, events, "finish { reason: FINISH_REASON_EOS }");
    Take(answer, events, "usage { completion_tokens: 2 }");
    EXPECT_EQ(events, "");
    return base::ParseJson(answer.Whole()).value();
  }

  static constexpr char kStart[] = R"(start { prompt_tokens: 3 cached_tokens: 1 weights_digest: "0123456789abcdef" })";
  base::FakeClock clock_{absl::FromUnixSeconds(0)};
  ResponseStore store_{{.ttl = absl::Minutes(10), .max_bytes = 100'000}, clock_};
};

// The type and the JSON of each event.
std::vector<std::pair<std::string, Json>> NamedEvents(const std::string& text) {
  std::vector<std::pair<std::string, Json>> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    const std::size_t line = text.find('\n', at);
    EXPECT_EQ(text.compare(at, 7, "event: "), 0) << text.substr(at);
    EXPECT_EQ(text.compare(line + 1, 6, "data: "), 0) << text.substr(at);
    const std::string type = text.substr(at + 7, line - at - 7);
    const Json json = base::ParseJson(text.substr(line + 7, end - line - 7)).value();
    EXPECT_EQ(json["type"], type);
    EXPECT_EQ(json["sequence_number"], events.size());
    events.emplace_back(type, json);
    at = end + 2;
  }
  return events;
}

TEST_F(ResponsesTest, InputBecomesMessages) {
  EXPECT_THAT(Messages(Prepare(R"("input":"a")").value()), ElementsAre("user: a"));
  EXPECT_THAT(Messages(Prepare(R"("instructions":"i","input":[
      {"role":"developer","content":"d"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"id":"msg_1","type":"message","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"c","annotations":[],"logprobs":[]}]}])")
                           .value()),
              ElementsAre("system: i", "system: d", "user: ab", "assistant: c"));
}

TEST_F(ResponsesTest, FieldsOfTheRequestReachTheModelAndTheResponse) {
  const auto prepared = Prepare(R"("input":"a","temperature":0.5,"top_p":0.25,"max_output_tokens":7,"seed":3,
      "include":["message.output_text.logprobs","reasoning.encrypted_content"],"top_logprobs":2,"stream":true,
      "stream_options":{"include_obfuscation":false},"metadata":{"k":"v"},"tools":[],"tool_choice":"none",
      "text":{"format":{"type":"text"}},"reasoning":{"effort":null,"summary":null})");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::GenerateRequest& request = prepared->call.generate.prompts.front();
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.sampling().temperature(), 0.5);
  EXPECT_EQ(request.sampling().seed(), 3);
  EXPECT_EQ(request.stopping().max_tokens(), 7);
  EXPECT_EQ(request.output().logprobs(), 2);
  EXPECT_TRUE(prepared->call.generate.stream);
  EXPECT_EQ(prepared->call.echo["top_p"], 0.25);
  EXPECT_EQ(prepared->call.echo["max_output_tokens"], 7);
  EXPECT_EQ(prepared->call.echo["metadata"]["k"], "v");
}

TEST_F(ResponsesTest, RefusesByNameWhatIsNotSupported) {
  EXPECT_THAT(Error(R"("instructions":"i")"), StartsWith("input: "));
  EXPECT_THAT(Error(R"("input":3)"), StartsWith("input: "));
  EXPECT_THAT(Error(R"("input":[3])"), StartsWith("input[0]: "));
  EXPECT_THAT(Error(R"("input":[{"role":"tool","content":"a"}])"), StartsWith("input[0].role: "));
  EXPECT_THAT(Error(R"("input":[{"role":"user","content":3}])"), StartsWith("input[0].content: "));
  EXPECT_THAT(Error(R"("input":[{"role":"user","content":"a","name":"b"}])"), StartsWith("input[0].name: "));
  EXPECT_THAT(Error(R"("input":[{"type":"reasoning","id":"rs_1","summary":[]}])"), StartsWith("input[0].type: "));
  EXPECT_THAT(Error(R"("input":[{"type":3,"role":"user","content":"a"}])"), StartsWith("input[0].type: "));
  for (const char* content : {R"([{"type":"output_text","text":"a"}])", R"([{"type":"input_file","file_id":"f"}])"})
    EXPECT_THAT(Error(R"("input":[{"role":"user","content":)" + std::string(content) + "}]"),
                StartsWith("input[0].content[0].type: "));
  EXPECT_THAT(Error(R"("input":[{"role":"user","content":[{"type":"input_text"}]}])"),
              StartsWith("input[0].content[0].text: "));
  EXPECT_THAT(Error(R"("input":"a","reasoning":{"effort":"low"})"), StartsWith("reasoning.effort: "));
  EXPECT_THAT(Error(R"("input":"a","reasoning":{"depth":1})"), StartsWith("reasoning.depth: "));
  EXPECT_THAT(Error(R"("input":"a","text":{"format":{"type":"json_schema"}})"), StartsWith("text.format.schema: "));
  EXPECT_THAT(Error(R"("input":"a","text":{"format":{"type":"grammar"}})"), StartsWith("text.format.type: "));
  EXPECT_THAT(Error(R"("input":"a","text":3)"), StartsWith("text: "));
  EXPECT_THAT(Error(R"("input":"a","stream_options":{})"), StartsWith("stream_options: "));
  EXPECT_THAT(Error(R"("input":"a","tools":[{"type":"web_search"}])"), StartsWith("tools[0].type: "));
  EXPECT_THAT(Error(R"("input":"a","tools":[{"type":"function","function":{"name":"f"}}])"), StartsWith("tools[0]."));
  EXPECT_THAT(Error(R"("input":"a","tool_choice":{"type":"custom","name":"f"})"), StartsWith("tool_choice.type: "));
  EXPECT_THAT(Error(R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])"),
              StartsWith("input[0].call_id: "));
  EXPECT_THAT(Error(R"("input":[{"type":"function_call_output","call_id":"c"}])"), StartsWith("input[0].output: "));
  EXPECT_THAT(Error(R"("input":"a","previous_response_id":"resp_x")"), StartsWith("previous_response_id: "));
  EXPECT_THAT(Error(R"("input":"a","metadata":[])"), StartsWith("metadata: "));
  EXPECT_THAT(Error(R"("input":"a","mode":1)"),
              StartsWith("mode: is not a field of this request; did you mean model?"));
}

TEST_F(ResponsesTest, ToolsReachTheModelAndTheResponse) {
  const auto prepared =
      Prepare(R"("input":"a","parallel_tool_calls":false,"tool_choice":"auto","tools":[{"type":"function",
      "name":"f","description":"does f","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}])");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::GenerateRequest& request = prepared->call.generate.prompts.front();
  ASSERT_EQ(request.chat().tools_size(), 1);
  EXPECT_EQ(request.chat().tools(0).name(), "f");
  EXPECT_EQ(request.chat().tools(0).description(), "does f");
  EXPECT_FALSE(request.parallel_tool_calls());
  EXPECT_EQ(prepared->call.echo["tools"][0]["parameters"]["properties"]["x"]["type"], "string");
  EXPECT_EQ(prepared->call.echo["tools"][0]["strict"], false);
  EXPECT_EQ(prepared->call.echo["parallel_tool_calls"], false);
  const auto chosen = Prepare(R"("input":"a","tools":[{"type":"function","name":"f","parameters":null}],
      "tool_choice":{"type":"function","name":"f"})");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->call.generate.prompts.front().required_tool(), "f");
  EXPECT_EQ(chosen->call.echo["tool_choice"]["name"], "f");
}

TEST_F(ResponsesTest, CallsOfOneAnswerAreOneMessage) {
  const std::string calls = R"({"role":"user","content":"a"},{"role":"assistant","content":"b"},
      {"type":"function_call","id":"fc_1","status":"completed","call_id":"c1","name":"f","arguments":"{}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":"{\"x\":1}"})";
  const std::string outputs = R"({"type":"function_call_output","call_id":"c2","output":"two"},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]})";
  EXPECT_THAT(Messages(Prepare(R"("input":[)" + calls + "," + outputs + "]").value()),
              ElementsAre("user: a", "assistant: b c1=f{} c2=g{\"x\":1}", "tool: two <- c2=g", "tool: one <- c1=f"));
  PreparedResponse unknown = Prepare(R"("input":[)" + outputs + "]").value();
  EXPECT_THAT(std::string(AddMessages(unknown.call, nullptr).message()), StartsWith("input[0].call_id: "));
}

TEST_F(ResponsesTest, CallsAreItemsAfterTheText) {
  PreparedResponse prepared = Prepare(R"("input":"a","stream":true)").value();
  ResponseAnswer answer = Answer(std::move(prepared), &store_);
  std::string text;
  Take(answer, text, kStart);
  Take(answer, text, "delta { text: 'b' }");
  Take(answer, text, "delta { tool_calls { index: 0 id: 'c0' name: 'f' arguments: '{' } }");
  Take(answer, text, "delta { tool_calls { index: 0 malformed: true } text: 'bad' }");
  Take(answer, text, "delta { tool_calls { index: 1 id: 'c1' name: 'f' arguments: '{\"x\":' } }");
  Take(answer, text, "delta { tool_calls { index: 1 arguments: '1}' } }");
  Take(answer, text, "finish { reason: FINISH_REASON_TOOL_CALLS }");
  Take(answer, text, "usage { completion_tokens: 9 }");
  text += answer.LastEvents();
  const auto events = NamedEvents(text);
  std::vector<std::string> types;
  for (const auto& [type, json] : events) types.push_back(type);
  EXPECT_THAT(types,
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[9].second["item"]["arguments"], "");
  EXPECT_EQ(events[10].second["delta"], "{\"x\":1}");
  EXPECT_EQ(events[12].second["output_index"], 1);
  const Json& response = events.back().second["response"];
  ASSERT_EQ(response["output"].size(), 2);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "bbad");
  EXPECT_EQ(response["output"][1], events[12].second["item"]);
  EXPECT_EQ(response["output"][1]["call_id"], "c1");
  const std::string next = R"("previous_response_id":")" + response["id"].get<std::string>() +
                           R"(","input":[{"type":"function_call_output","call_id":"c1","output":"r"}])";
  EXPECT_THAT(Messages(Prepare(next).value()),
              ElementsAre("user: a", "assistant: bbad c1=f{\"x\":1}", "tool: r <- c1=f"));
}

TEST_F(ResponsesTest, AnswerThatIsOnlyACallHasNoMessage) {
  ResponseAnswer answer = Answer(Prepare(R"("input":"a")").value(), &store_);
  std::string events;
  Take(answer, events, kStart);
  Take(answer, events, "delta { tool_calls { index: 0 id: 'c0' name: 'f' arguments: '{}' } }");
  Take(answer, events, "finish { reason: FINISH_REASON_TOOL_CALLS }");
  const Json response = base::ParseJson(answer.Whole()).value();
  ASSERT_EQ(response["output"].size(), 1);
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  EXPECT_EQ(response["output"][0]["arguments"], "{}");
  EXPECT_EQ(response["status"], "completed");
}

TEST_F(ResponsesTest, ResponseHasTheFieldsOfOpenAi) {
  const Json response = Run(R"("input":"a","instructions":"i")", "b");
  EXPECT_THAT(response["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["created_at"], 100);
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["error"], nullptr);
  EXPECT_EQ(response["incomplete_details"], nullptr);
  EXPECT_EQ(response["instructions"], "i");
  EXPECT_EQ(response["store"], true);
  EXPECT_EQ(response["system_fingerprint"], "fp_0123456789ab");
  EXPECT_EQ(response["usage"], base::ParseJson(R"({"input_tokens":3,"input_tokens_details":{"cached_tokens":1,
      "cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5})")
                                   .value());
  const Json& item = response["output"][0];
  EXPECT_THAT(item["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(item["status"], "completed");
  EXPECT_EQ(item["content"][0]["text"], "b");
  EXPECT_EQ(base::ParseJson(store_.Find(kOwner, response["id"])->Json()).value(), response);
}

TEST_F(ResponsesTest, ConversationHasTheItemsOfAllTurnsButOnlyItsOwnInstructions) {
  const Json first = Run(R"("input":"a","instructions":"one")", "b");
  const std::string id = first["id"];
  const Json second = Run(R"("input":"c","previous_response_id":")" + id + '"', "d");
  const std::string last =
      R"("input":"e","instructions":"two","previous_response_id":")" + second["id"].get<std::string>() + '"';
  EXPECT_THAT(Messages(Prepare(last).value()),
              ElementsAre("system: two", "user: a", "assistant: b", "user: c", "assistant: d", "user: e"));
  EXPECT_THAT(Error(last, "bob"), StartsWith("previous_response_id: there is no response"));
  EXPECT_EQ(FromStatus(Prepare(last, "bob").status()).code, "previous_response_not_found");
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(FromStatus(Prepare(last).status()).code, "previous_response_not_found");
}

TEST_F(ResponsesTest, ItemsAreReferredToByTheirOwnerOnly) {
  const Json first = Run(R"("input":[{"role":"user","content":"a"},{"role":"user","content":"b"}])", "c");
  const std::string output = first["output"][0]["id"];
  const std::string second = ItemId("msg", first["id"].get<std::string>(), 1);
  const std::string fields = R"("input":[{"type":"item_reference","id":")" + second +
                             R"("},{"type":"item_reference","id":")" + output + R"("},{"role":"user","content":"d"}])";
  EXPECT_THAT(Messages(Prepare(fields).value()), ElementsAre("user: b", "assistant: c", "user: d"));
  EXPECT_THAT(Error(fields, "bob"), StartsWith("input[0].id: there is no item"));
  for (const char* id : {"", "_", "msg_", "msg_1", "msg__0", "msg_nothing_0"})
    EXPECT_THAT(Error(R"("input":[{"type":"item_reference","id":")" + std::string(id) + R"("}])"),
                StartsWith("input[0].id: there is no item"));
}

TEST_F(ResponsesTest, ReferencesToLargeItemsAreBounded) {
  const Json large = Run(R"("input":"a")", std::string(1'500, 'b'));
  const std::string one = R"({"type":"item_reference","id":")" + large["output"][0]["id"].get<std::string>() + R"("})";
  EXPECT_TRUE(Prepare(R"("input":[)" + one + "," + one + "]").ok());
  EXPECT_THAT(Error(R"("input":[)" + one + "," + one + "," + one + "]"), StartsWith("input[2].id: the items up to"));
}

TEST_F(ResponsesTest, ConversationIsBounded) {
  std::string id = Run(R"("input":"a")", std::string(4'000, 'b'))["id"];
  EXPECT_THAT(Error(R"("previous_response_id":")" + id + R"(","input":"a")"), HasSubstr("the conversation would have"));
  id = Run(R"("input":"a")", "b")["id"];
  const auto begun = store_.Find(kOwner, id);
  Turn turn{.previous = begun->turn, .input = {}, .output = {}};
  while (turn.previous->num_turns < kMaxTurns) {
    auto next = std::make_shared<Turn>(turn);
    next->num_turns = turn.previous->num_turns + 1;
    turn.previous = std::move(next);
  }
  ASSERT_TRUE(store_.Add(kOwner, {.id = "resp_long", .head = "", .tail = "", .turn = nullptr}, turn));
  EXPECT_THAT(Error(R"("previous_response_id":"resp_long","input":"a")"), HasSubstr("responses, the most"));
}

TEST_F(ResponsesTest, ServerThatKeepsNothingSaysSo) {
  ResponseStore none({.ttl = absl::ZeroDuration()}, clock_);
  const auto error = [&](const std::string& fields) {
    const auto body = base::ParseJson(R"({"model":"m","input":"a")" + fields + "}").value();
    return std::string(PrepareResponse(body, kOwner, none, 1000).status().message());
  };
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(error(R"(,"store":false)"), "");
  EXPECT_THAT(error(R"(,"store":true)"), HasSubstr("--openai_response_ttl_s is 0"));
  EXPECT_THAT(error(R"(,"previous_response_id":"resp_x")"), HasSubstr("--openai_response_ttl_s is 0"));
}

TEST_F(ResponsesTest, StreamHasTheEventsOfOpenAiInOrder) {
  ResponseAnswer answer = Answer(Prepare(R"("input":"a","stream":true)").value(), &store_);
  std::string text;
  Take(answer, text, kStart);
  Take(answer, text, "delta { token_ids: 1 }");  // held back
  Take(answer, text, "delta { text: 'b' token_ids: 2 }");
  Take(answer, text, "delta { text: 'c' token_ids: 3 }");
  Take(answer, text, "finish { reason: FINISH_REASON_LENGTH }");
  Take(answer, text, "usage { completion_tokens: 3 }");
  EXPECT_EQ(store_.Now().responses, 0);
  text += answer.LastEvents();
  EXPECT_EQ(store_.Now().responses, 1);
  const auto events = NamedEvents(text);
  std::vector<std::string> types;
  for (const auto& [type, json] : events) types.push_back(type);
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                                 "response.content_part.added", "response.output_text.delta",
                                 "response.output_text.delta", "response.output_text.done",
                                 "response.content_part.done", "response.output_item.done", "response.incomplete"));
  EXPECT_EQ(events[0].second["response"]["output"], Json::array());
  EXPECT_EQ(events[4].second["delta"], "b");
  EXPECT_EQ(events[6].second["text"], "bc");
  const Json& response = events.back().second["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0], events[8].second["item"]);
}

TEST_F(ResponsesTest, AnswerWithoutTextIsAnEmptyMessage) {
  ResponseAnswer answer = Answer(Prepare(R"("input":"a")").value(), nullptr);
  std::string events;
  Take(answer, events, kStart);
  Take(answer, events, "finish { reason: FINISH_REASON_EOS }");
  const Json response = base::ParseJson(answer.Whole()).value();
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(response["store"], false);
}

TEST_F(ResponsesTest, FailedStreamEndsWithTheFailureAndTheError) {
  const ApiError error{.status = 503, .type = "service_unavailable_error", .message = "draining", .code = "draining"};
  {
    ResponseAnswer answer = Answer(Prepare(R"("input":"a","stream":true)").value(), &store_);
    const auto events = NamedEvents(answer.ErrorEvents(error));
    ASSERT_EQ(events.size(), 1);
    EXPECT_EQ(events[0].first, "error");
  }
  ResponseAnswer answer = Answer(Prepare(R"("input":"a","stream":true)").value(), &store_);
  std::string text;
  Take(answer, text, kStart);
  Take(answer, text, "delta { text: 'b' token_ids: 2 }");
  text += answer.ErrorEvents(error);
  const auto events = NamedEvents(text);
  ASSERT_EQ(events.size(), 7);
  EXPECT_EQ(events[5].first, "response.failed");
  EXPECT_EQ(events[5].second["response"]["status"], "failed");
  EXPECT_EQ(events[5].second["response"]["error"]["code"], "server_error");
  EXPECT_EQ(events[5].second["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(events[6].first, "error");
  EXPECT_EQ(events[6].second["message"], "draining");
  EXPECT_EQ(events[6].second["error"]["code"], "draining");
  EXPECT_EQ(store_.Now().responses, 0);
}

TEST_F(ResponsesTest, ResponseThatDoesNotFitSaysThatItIsNotKept) {
  EXPECT_EQ(Run(R"("input":"a")", std::string(60'000, 'b'))["store"], false);
  EXPECT_EQ(store_.Now().responses, 0);
}

}  // namespace
}  // namespace nibble::openai
