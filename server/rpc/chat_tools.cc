#include "server/rpc/chat_tools.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;

constexpr int kMaxTools = 128;      // as OpenAI's API
constexpr int kMaxToolCalls = 128;  // of a message
constexpr std::size_t kMaxNameBytes = 64;
constexpr std::size_t kMistralIdBytes = 9;

absl::Status CheckToolName(const std::string& field, const std::string& name) {
  const bool valid = !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
  if (valid) return absl::OkStatus();
  return FieldError(field, name.empty() || name.size() > kMaxNameBytes
                               ? StrCat("has ", name.size(), " bytes, wanted 1 to ", kMaxNameBytes)
                               : std::string("wanted only letters, digits, \"_\", \"-\" and \".\""));
}

absl::Status CheckObject(const std::string& field, const std::string& json, const char* wanted) {
  if (json.empty()) return absl::OkStatus();
  const auto parsed = base::ParseJson(json);
  if (!parsed.ok()) return FieldError(field, base::ToStd(parsed.status().message()));
  return parsed->is_object() ? absl::OkStatus() : FieldError(field, StrCat("is no JSON object, wanted ", wanted));
}

void AddString(std::string_view name, const std::string& value, std::string& json) {
  json += StrCat(",\"", name, "\":");
  base::AppendJsonString(value, &json);
}

}  // namespace

absl::Status CheckTools(const v1::ChatInput& chat) {
  if (chat.tools_size() > kMaxTools)
    return FieldError("chat.tools", StrCat("has ", chat.tools_size(), " tools, wanted at most ", kMaxTools));
  std::set<std::string_view> names;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const v1::Tool& tool = chat.tools(i);
    const std::string at = StrCat("chat.tools[", i, "].");
    NIBBLE_RETURN_IF_ERROR(CheckToolName(at + "name", tool.name()));
    if (!names.insert(tool.name()).second)
      return FieldError(at + "name", StrCat("is \"", tool.name(), "\", the name of another tool"));
    NIBBLE_RETURN_IF_ERROR(CheckObject(at + "parameters", tool.parameters(), "a JSON schema"));
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    const std::string at = StrCat("chat.messages[", i, "].tool_calls");
    if (message.tool_calls_size() > kMaxToolCalls)
      return FieldError(at, StrCat("has ", message.tool_calls_size(), " calls, wanted at most ", kMaxToolCalls));
    for (int k = 0; k < message.tool_calls_size(); ++k) {
      const v1::ToolCall& call = message.tool_calls(k);
      NIBBLE_RETURN_IF_ERROR(CheckToolName(StrCat(at, "[", k, "].name"), call.name()));
      NIBBLE_RETURN_IF_ERROR(CheckObject(StrCat(at, "[", k, "].arguments"), call.arguments(), "the arguments by name"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckToolChoice(const v1::GenerateRequest& request) {
  const auto& tools = request.chat().tools();
  const auto choice = request.tool_choice();
  if (!v1::ToolChoice_IsValid(choice))
    return FieldError("tool_choice", StrCat("is ", static_cast<int>(choice), ", wanted a value of ToolChoice"));
  const std::string& wanted = request.required_tool();
  const bool may_call = choice != v1::TOOL_CHOICE_NONE && choice != v1::TOOL_CHOICE_UNSPECIFIED;
  if (tools.empty() && (may_call || !wanted.empty()))
    return FieldError(wanted.empty() ? "tool_choice" : "required_tool", "is only allowed with chat.tools");
  if (!wanted.empty()) {
    if (choice != v1::TOOL_CHOICE_REQUIRED && choice != v1::TOOL_CHOICE_UNSPECIFIED)
      return FieldError("required_tool", StrCat("is not allowed with tool_choice ", v1::ToolChoice_Name(choice)));
    if (std::none_of(tools.begin(), tools.end(), [&](const v1::Tool& tool) { return tool.name() == wanted; }))
      return FieldError("required_tool", StrCat("is \"", wanted, "\", wanted the name of a tool of chat.tools"));
  }
  return absl::OkStatus();
}

bool MayCallTools(const v1::GenerateRequest& request) {
  return !request.chat().tools().empty() && request.tool_choice() != v1::TOOL_CHOICE_NONE;
}

bool CallsInParallel(const v1::GenerateRequest& request) {
  return !request.has_parallel_tool_calls() || request.parallel_tool_calls();
}

bool HasToolCalls(const v1::ChatInput& chat) {
  return std::any_of(chat.messages().begin(), chat.messages().end(),
                     [](const v1::ChatMessage& message) { return !message.tool_calls().empty(); });
}

std::string ToolsJson(const v1::ChatInput& chat) {
  if (chat.tools().empty()) return "";
  std::string json;
  for (const v1::Tool& tool : chat.tools()) {
    json += json.empty() ? "[" : ",";
    json += R"({"type":"function","function":{"name":)";
    base::AppendJsonString(tool.name(), &json);
    if (!tool.description().empty()) AddString("description", tool.description(), json);
    json += R"(,"parameters":)";
    json += tool.parameters().empty() ? R"({"type":"object","properties":{}})" : tool.parameters();
    json += "}}";
  }
  return json + "]";
}

std::string MessagesJson(const v1::ChatInput& chat) {
  std::string json = "[";
  for (const v1::ChatMessage& message : chat.messages()) {
    json += json.size() == 1 ? R"({"role":)" : R"(,{"role":)";
    base::AppendJsonString(message.role(), &json);
    AddString("content", message.content(), json);
    if (!message.name().empty()) AddString("name", message.name(), json);
    if (!message.tool_call_id().empty()) AddString("tool_call_id", message.tool_call_id(), json);
    for (int i = 0; i < message.tool_calls_size(); ++i) {
      const v1::ToolCall& call = message.tool_calls(i);
      json += i == 0 ? R"(,"tool_calls":[{"type":"function")" : R"(,{"type":"function")";
      AddString("id", call.id(), json);
      json += R"(,"function":{"name":)";
      base::AppendJsonString(call.name(), &json);
      json += R"(,"arguments":)";
      json += call.arguments().empty() ? "{}" : call.arguments();
      json += "}}";
    }
    json += message.tool_calls().empty() ? "}" : "]}";
  }
  return json + "]";
}

void SetToolCalls(text::ToolParser::Result result, text::ToolFormat format, v1::GenerateDelta& delta) {
  delta.set_text(std::move(result.content));
  for (text::ToolParser::CallPart& part : result.calls) {
    v1::ToolCallDelta& call = *delta.add_tool_calls();
    call.set_index(part.index);
    if (!part.name.empty()) {
      const std::string random = base::NewId("c").substr(2);
      const bool mistral = format == text::ToolFormat::kMistralList || format == text::ToolFormat::kMistralNamed;
      call.set_id(mistral ? random.substr(0, kMistralIdBytes) : "call_" + random);
      call.set_name(std::move(part.name));
    }
    call.set_arguments(std::move(part.arguments));
    call.set_malformed(part.malformed);
  }
}

}  // namespace nibble::rpc
