#include "server/openai/tool_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/openai/generate_request.h"

namespace nibble::openai {
namespace {

using ::testing::StartsWith;

absl::StatusOr<GenerateCall> Chat(const std::string& fields) {
  base::Json json = base::ParseJson(R"({"model":"m","messages":[{"role":"user","content":"x"}]})").value();
  json.update(base::ParseJson(fields).value());
  return ParseChat(json);
}

constexpr char kTools[] = R"({"tools":[
    {"type":"function","function":{"name":"now","description":"The time","strict":null,
                                   "parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}},
    {"type":"function","function":{"name":"then","strict":false}}]})";

TEST(ToolFieldsTest, ReadsToolsAndTheirChoice) {
  const auto call = Chat(kTools);
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::GenerateRequest& request = call->prompts[0];
  const auto& tools = request.chat().tools();
  ASSERT_EQ(tools.size(), 2);
  EXPECT_EQ(tools[0].name(), "now");
  EXPECT_EQ(tools[0].description(), "The time");
  EXPECT_EQ(tools[0].parameters(), R"({"type":"object","properties":{"zone":{"type":"string"}}})");
  EXPECT_FALSE(tools[0].has_strict());
  EXPECT_EQ(tools[1].parameters(), "");
  EXPECT_EQ(request.tool_choice(), v1::TOOL_CHOICE_UNSPECIFIED);
  EXPECT_FALSE(request.has_parallel_tool_calls());

  const auto choice = [](const std::string& text) {
    return Chat(R"({"tool_choice":)" + text + R"(,"parallel_tool_calls":false})").value().prompts[0];
  };
  EXPECT_EQ(choice("\"auto\"").tool_choice(), v1::TOOL_CHOICE_AUTO);
  EXPECT_EQ(choice("\"none\"").tool_choice(), v1::TOOL_CHOICE_NONE);
  EXPECT_EQ(choice("\"required\"").tool_choice(), v1::TOOL_CHOICE_REQUIRED);
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"now"}})").required_tool(), "now");
  EXPECT_TRUE(choice("null").has_parallel_tool_calls());
  EXPECT_FALSE(choice("null").parallel_tool_calls());
}

// As OpenAI's libraries send an answer back, with all fields that they know.
TEST(ToolFieldsTest, ReadsMessagesWithCallsAndResults) {
  const auto call = Chat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":[
          {"index":0,"id":"call_1","type":"function","function":{"name":"now","arguments":"{\"zone\": \"UTC\"}"}}]},
      {"role":"tool","tool_call_id":"call_1","name":"now","content":[{"type":"text","text":"12"},{"type":"text","text":":00"}]}]})");
  ASSERT_TRUE(call.ok()) << call.status();
  const auto& messages = call->prompts[0].chat().messages();
  ASSERT_EQ(messages.size(), 3);
  EXPECT_EQ(messages[1].content(), "");
  ASSERT_EQ(messages[1].tool_calls_size(), 1);
  EXPECT_EQ(messages[1].tool_calls(0).id(), "call_1");
  EXPECT_EQ(messages[1].tool_calls(0).name(), "now");
  EXPECT_EQ(messages[1].tool_calls(0).arguments(), R"({"zone": "UTC"})");
  EXPECT_EQ(messages[2].role(), "tool");
  EXPECT_EQ(messages[2].tool_call_id(), "call_1");
  EXPECT_EQ(messages[2].name(), "now");
  EXPECT_EQ(messages[2].content(), "12:00");
}

TEST(ToolFieldsTest, NamesTheWrongField) {
  const std::vector<std::pair<std::string, std::string>> chats = {
      {R"({"tools":{}})", "tools: is an object"},
      {R"({"tools":["now"]})", "tools[0]: is a string"},
      {R"({"tools":[{"type":"custom","custom":{"name":"now"}}]})", "tools[0].type: is \"custom\""},
      {R"({"tools":[{"type":"function","function":{"name":""}}]})", "tools[0].function.name: "},
      {R"({"tools":[{"type":"function","function":{"name":"a","parameters":"{}"}}]})",
       "tools[0].function.parameters: "},
      {R"({"tools":[{"type":"function","function":{"name":"a","arguments":{}}}]})",
       "tools[0].function.arguments: is not a field"},
      {R"({"tool_choice":{"type":"allowed_tools","allowed_tools":{}}})", "tool_choice.type: "},
      {R"({"tool_choice":{"type":"function","function":{}}})", "tool_choice.function.name: "},
      {R"({"tool_choice":1})", "tool_choice: is 1"},
      {R"({"parallel_tool_calls":"no"})", "parallel_tool_calls: "},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"a","arguments":{}}}]}]})",
       "messages[0].tool_calls[0].function.arguments: is an object, wanted a string"},
      {R"({"messages":[{"role":"assistant","content":"x","function_call":{"name":"a"}}]})",
       "messages[0].function_call: "},
  };
  for (const auto& [fields, message] : chats) {
    EXPECT_THAT(std::string(Chat(fields).status().message()), StartsWith(message)) << fields;
  }
}

TEST(ToolFieldsTest, FieldsOfTheGrpcApiHaveTheirNameHere) {
  EXPECT_EQ(FunctionField("tools[1].name"), "tools[1].function.name");
  EXPECT_EQ(FunctionField("messages[0].tool_calls[12].arguments"), "messages[0].tool_calls[12].function.arguments");
  EXPECT_EQ(FunctionField("messages[0].tool_calls"), "messages[0].tool_calls");
  EXPECT_EQ(FunctionField("tools"), "tools");
  EXPECT_EQ(FunctionField("messages[0].content"), "messages[0].content");
}

}  // namespace
}  // namespace nibble::openai
