// Tools and calls of tools in requests: the prompts that templates make of them, and refused fields.
#include "server/rpc/chat_tools.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/messages/tool_calls.h"
#include "server/rpc/inference_input.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// A request of chat_tools.json, which has the form of OpenAI's API.
v1::ChatInput ChatOf(const base::Json& json) {
  v1::ChatInput chat;
  for (const base::Json& each : json.at("messages")) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(each.at("role").get<std::string>());
    message.set_content(each.at("content").get<std::string>());
    message.set_tool_call_id(each.value("tool_call_id", ""));
    for (const base::Json& call : each.value("tool_calls", base::Json::array())) {
      v1::ToolCall& out = *message.add_tool_calls();
      out.set_id(call.at("id").get<std::string>());
      out.set_name(call.at("function").at("name").get<std::string>());
      out.set_arguments(call.at("function").at("arguments").get<std::string>());
    }
  }
  for (const base::Json& each : json.at("tools")) {
    const base::Json& function = each.at("function");
    v1::Tool& tool = *chat.add_tools();
    tool.set_name(function.at("name").get<std::string>());
    tool.set_description(function.at("description").get<std::string>());
    tool.set_parameters(base::Dump(function.at("parameters")));
  }
  return chat;
}

model::TextAssets AssetsOf(const std::string& source, const text::ChatTemplate::SpecialTokens& tokens = {}) {
  model::TextAssets assets;
  auto compiled = text::ChatTemplate::Compile(source, tokens);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  if (!compiled.ok()) return assets;
  assets.chat_template = *std::move(compiled);
  assets.tool_template = assets.chat_template;
  assets.tool_format = text::FindToolFormat(*assets.tool_template);
  return assets;
}

constexpr std::size_t kMaxBytes = 1 << 20;

TEST(ChatToolsTest, PromptsEqualThoseOfTransformers) {
  std::ifstream in(NIBBLE_SOURCE_DIR "/tests/golden/text/chat_tools.json");
  const base::Json golden = base::Json::parse(in);
  text::ChatTemplate::SpecialTokens tokens;
  for (const auto& [name, token] : golden.at("special_tokens").items()) tokens.emplace_back(name, token);
  int cases = 0;
  for (const base::Json& one : golden.at("cases")) {
    SCOPED_TRACE(one.at("template").get<std::string>() + ", " + one.at("name").get<std::string>());
    const model::TextAssets assets = AssetsOf(one.at("source"), tokens);
    EXPECT_TRUE(assets.tool_format.ok()) << assets.tool_format.status();
    const auto rendered = Render(ChatOf(one), assets, kMaxBytes);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(*rendered, one.at("rendered").get<std::string>());
    ++cases;
  }
  EXPECT_EQ(cases, 19);
}

constexpr char kPlain[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
constexpr char kWithTools[] =
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.name %}({{ m.name }}){% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}";

TEST(ChatToolsTest, FieldsWithoutValueHaveDefaults) {
  const auto chat = FromText<v1::ChatInput>(R"(
      messages { role: "user" content: "Hi \"you\"" }
      messages { role: "assistant" tool_calls { id: "i" name: "now" } }
      messages { role: "tool" name: "now" tool_call_id: "i" content: "12" }
      tools { name: "now" })");
  EXPECT_EQ(ToolsJson(chat),
            R"([{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}])");
  EXPECT_EQ(
      MessagesJson(chat),
      R"([{"role":"user","content":"Hi \"you\""},{"role":"assistant","content":"","tool_calls":[{"type":"function",)"
      R"("id":"i","function":{"name":"now","arguments":{}}}]},)"
      R"({"role":"tool","content":"12","name":"now","tool_call_id":"i"}])");
  const auto rendered = Render(chat, AssetsOf(kWithTools), kMaxBytes);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(*rendered, HasSubstr("{\"name\": \"now\", \"arguments\": {}}\n</tool_call>tool: 12(now)"));
}

TEST(ChatToolsTest, TemplateWithoutToolsRefusesThem) {
  const auto assets = AssetsOf(kPlain);
  const auto error = [&](const std::string& text) {
    return Render(FromText<v1::ChatInput>(text), assets, kMaxBytes).status();
  };
  EXPECT_TRUE(error("messages { role: 'user' content: 'x' }").ok());
  const absl::Status tools = error("messages { role: 'user' content: 'x' } tools { name: 'now' }");
  EXPECT_EQ(tools.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(base::Reason(tools), "TEMPLATE_ERROR");
  EXPECT_EQ(base::ReasonMetadata(tools).at("field"), "chat.tools");
  EXPECT_THAT(std::string(tools.message()), HasSubstr("does not render tools"));
  const absl::Status calls = error("messages { role: 'assistant' tool_calls { name: 'now' } }");
  EXPECT_EQ(base::ReasonMetadata(calls).at("field"), "chat.messages.tool_calls") << "a template would leave them out";
}

TEST(ChatToolsTest, NamesTheWrongField) {
  const std::vector<std::pair<std::string, std::string>> chats = {
      {"tools { }", "chat.tools[0].name: has 0 bytes"},
      {"tools { name: '" + std::string(65, 'x') + "' }", "chat.tools[0].name: has 65 bytes, wanted 1 to 64"},
      {"tools { name: 'a b' }", "chat.tools[0].name: wanted only letters"},
      {"tools { name: 'a' } tools { name: 'a' }", "chat.tools[1].name: is \"a\", the name of another tool"},
      {"tools { name: 'a' parameters: '{' }", "chat.tools[0].parameters: "},
      {"tools { name: 'a' parameters: '[]' }", "chat.tools[0].parameters: is no JSON object"},
      {"messages { tool_calls { name: 'a' } tool_calls { name: 'a' arguments: '1' } }",
       "chat.messages[0].tool_calls[1].arguments: is no JSON object"},
      {"messages { tool_calls { name: 'a' arguments: '{\"a\": 1, \"a\": 2}' } }",
       "chat.messages[0].tool_calls[0].arguments: "},
      {"messages { } messages { tool_calls { name: '<tool_call>' } }", "chat.messages[1].tool_calls[0].name: wanted"},
  };
  for (const auto& [text, message] : chats) {
    const absl::Status status = CheckTools(FromText<v1::ChatInput>(text));
    EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(message)) << text;
  }
  v1::ChatInput many;
  for (int i = 0; i < 129; ++i) many.add_tools()->set_name("t" + std::to_string(i));
  EXPECT_THAT(std::string(CheckTools(many).message()), HasSubstr("chat.tools: has 129 tools, wanted at most 128"));
}

TEST(ChatToolsTest, ChoiceNeedsToolsAndIsCompleteOrRefused) {
  const auto status = [](const std::string& text) {
    auto request = FromText<v1::GenerateRequest>("chat { messages { } }");
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &request)) << text;
    return CheckToolChoice(request);
  };
  const std::string tool = "chat { tools { name: 'now' } } ";
  for (const std::string& right :
       {std::string(), std::string("tool_choice: TOOL_CHOICE_NONE"), tool, tool + "tool_choice: TOOL_CHOICE_AUTO",
        std::string("tool_choice: TOOL_CHOICE_NONE chat { tools { name: 's' strict: true } }"),
        tool + "tool_choice: TOOL_CHOICE_REQUIRED", tool + "required_tool: 'now'",
        std::string("chat { tools { name: 's' strict: true } }")}) {
    EXPECT_TRUE(status(right).ok()) << right << ": " << status(right);
  }
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"tool_choice: TOOL_CHOICE_AUTO", "tool_choice"},
      {"tool_choice: TOOL_CHOICE_REQUIRED", "tool_choice"},
      {"required_tool: 'now'", "required_tool"},
      {tool + "required_tool: 'then'", "required_tool"},
      {tool + "required_tool: 'now' tool_choice: TOOL_CHOICE_AUTO", "required_tool"},
  };
  for (const auto& [text, field] : wrong) {
    EXPECT_EQ(base::ReasonMetadata(status(text))["field"], field) << text << ": " << status(text);
  }
  v1::GenerateRequest unknown;
  unknown.set_tool_choice(static_cast<v1::ToolChoice>(9));
  EXPECT_THAT(std::string(CheckToolChoice(unknown).message()), HasSubstr("tool_choice: is 9"));
}

TEST(ChatToolsTest, IdsHaveTheFormOfTheModelsTemplates) {
  text::ToolParser::Result result;
  result.calls = {{.index = 0, .name = "now", .arguments = "{"}, {.index = 1, .name = "now", .arguments = ""}};
  v1::GenerateDelta hermes, mistral;
  SetToolCalls(result, text::ToolFormat::kHermes, hermes);
  EXPECT_THAT(hermes.tool_calls(0).id(), MatchesRegex("call_[0-9a-v]{16}"));
  EXPECT_NE(hermes.tool_calls(0).id(), hermes.tool_calls(1).id());
  for (const auto format : {text::ToolFormat::kMistralList, text::ToolFormat::kMistralNamed}) {
    SetToolCalls(result, format, mistral);
    EXPECT_THAT(mistral.tool_calls(0).id(), MatchesRegex("[0-9a-v]{9}"));
  }
  result = {.content = "x", .calls = {{.index = 1, .name = "", .arguments = "}", .malformed = true}}};
  v1::GenerateDelta rest;
  SetToolCalls(result, text::ToolFormat::kHermes, rest);
  EXPECT_EQ(rest.tool_calls(0).id(), "") << "only in the first piece";
}

TEST(ChatToolsTest, PiecesJoinToCallsWithoutMalformedOnes) {
  google::protobuf::RepeatedPtrField<v1::ToolCall> calls;
  for (const char* text :
       {"tool_calls { id: 'a' name: 'now' arguments: '{' }", "tool_calls { arguments: '}' }",
        "tool_calls { index: 1 id: 'b' name: 'then' }",
        "tool_calls { index: 1 arguments: '{' malformed: true } tool_calls { index: 2 id: 'c' name: 'x' }"}) {
    messages::AddToolCalls(FromText<v1::GenerateDelta>(text), calls);
  }
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0].arguments(), "{}");
  EXPECT_EQ(calls[1].id(), "c");
}

}  // namespace
}  // namespace nibble::rpc
