#include "server/openai/response_items.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

Json Part(const std::string& text, bool of_assistant) {
  if (!of_assistant) return {{"type", "input_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

// Returns the content as parts.
absl::StatusOr<Json> CheckContent(const Json* content, const std::string& path, bool of_assistant) {
  if (content == nullptr || (!content->is_string() && !content->is_array())) {
    return FieldError(
        path, StrCat("is ", content == nullptr ? "missing" : TypeName(*content), ", wanted a string or an array"));
  }
  Json parts = Json::array();
  if (content->is_string()) {
    parts.push_back(Part(content->get_ref<const std::string&>(), of_assistant));
    return parts;
  }
  const char* wanted = of_assistant ? "output_text" : "input_text";
  for (std::size_t i = 0; i < content->size(); ++i) {
    JsonFields fields((*content)[i], StrCat(path, "[", i, "]."));
    const std::string type = fields.String("type").value_or("");
    if (!fields.failed() && type != wanted)
      fields.Fail("type", StrCat("is \"", type, "\", wanted \"", wanted, "\", the only supported type of this role"));
    const auto part = fields.String("text");
    if (!part.has_value()) fields.Fail("text", "wanted a string");
    if (of_assistant) {
      for (const char* name : {"annotations", "logprobs"}) fields.Ignore(name);  // of an answer that the client returns
    } else {
      fields.Ignore("prompt_cache_breakpoint");
    }
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    parts.push_back(Part(*part, of_assistant));
  }
  return parts;
}

absl::StatusOr<Json> CheckMessage(JsonFields& fields, const std::string& path) {
  const std::string role = fields.String("role").value_or("");
  constexpr const char* kRoles[] = {"user", "assistant", "system", "developer"};
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
    fields.Fail("role", StrCat("is \"", role, "\", wanted user, assistant, system or developer"));
  const Json* content = fields.Any("content");
  fields.Ignore("phase");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  NIBBLE_ASSIGN_OR_RETURN(Json parts, CheckContent(content, path + "content", role == "assistant"));
  return Json{{"type", "message"}, {"status", "completed"}, {"role", role}, {"content", std::move(parts)}};
}

absl::StatusOr<Json> CheckCall(JsonFields& fields) {
  Json call = {{"type", "function_call"}, {"status", "completed"}};
  for (const char* name : {"call_id", "name", "arguments"}) {
    const auto text = fields.String(name);
    if (!text.has_value()) fields.Fail(name, "wanted a string");
    call[name] = text.value_or("");
  }
  // OpenAI's library writes these, as null, when it writes a call that it has read.
  for (const char* name : {"namespace", "caller", "async", "async_"}) fields.Unsupported(name);
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  return call;
}

absl::StatusOr<Json> CheckCallOutput(JsonFields& fields, const std::string& path) {
  const auto call_id = fields.String("call_id");
  if (!call_id.has_value()) fields.Fail("call_id", "wanted a string");
  const Json* output = fields.Any("output");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  NIBBLE_ASSIGN_OR_RETURN(Json parts, CheckContent(output, path + "output", false));
  return Json{{"type", "function_call_output"},
              {"status", "completed"},
              {"call_id", *call_id},
              {"output", output->is_string() ? Json(*output) : std::move(parts)}};
}

std::string TextOfParts(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += part["text"].get_ref<const std::string&>();
  return text;
}

}  // namespace

absl::StatusOr<Json> CheckItem(const Json& item, const std::string& path) {
  JsonFields fields(item, path);
  const std::string type = fields.String("type").value_or("message");
  fields.Ignore("id");
  fields.Ignore("status");
  if (type == "message") return CheckMessage(fields, path);
  if (type == "function_call") return CheckCall(fields);
  if (type == "function_call_output") return CheckCallOutput(fields, path);
  fields.Fail("type", StrCat("is \"", type,
                             "\", wanted message, function_call, function_call_output or item_reference, the supported "
                             "types"));
  return fields.Finish();
}

absl::Status ItemMessages::Add(const Json& item, const std::string& path) {
  const std::string type = item["type"];
  if (type == "function_call") {
    // The text and the calls of one answer are one message.
    auto& messages = *chat_.mutable_messages();
    if (messages.empty() || messages.rbegin()->role() != "assistant") messages.Add()->set_role("assistant");
    v1::ToolCall& call = *messages.rbegin()->add_tool_calls();
    call.set_id(item["call_id"]);
    call.set_name(item["name"]);
    call.set_arguments(item["arguments"]);
    calls_[call.id()] = call.name();
    return absl::OkStatus();
  }
  if (type == "function_call_output") {
    const std::string id = item["call_id"];
    const auto call = calls_.find(id);
    if (call == calls_.end())
      return FieldError(path + "call_id", StrCat("there is no function_call with the call_id \"", id, "\" before it"));
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role("tool");
    message.set_tool_call_id(id);
    message.set_name(call->second);
    message.set_content(TextOfParts(item["output"]));
    return absl::OkStatus();
  }
  v1::ChatMessage& message = *chat_.add_messages();
  const std::string role = item["role"];
  message.set_role(role == "developer" ? "system" : role);  // as for chats
  message.set_content(TextOfParts(item["content"]));
  return absl::OkStatus();
}

}  // namespace nibble::openai
