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

// Returns the content as parts, and appends its text to `text`.
absl::StatusOr<Json> ReadContent(const Json* content, const std::string& path, bool of_assistant, std::string& text) {
  if (content == nullptr || (!content->is_string() && !content->is_array())) {
    return FieldError(
        path, StrCat("is ", content == nullptr ? "missing" : TypeName(*content), ", wanted a string or an array"));
  }
  Json parts = Json::array();
  if (content->is_string()) {
    text += content->get_ref<const std::string&>();
    parts.push_back(Part(text, of_assistant));
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
    text += *part;
    parts.push_back(Part(*part, of_assistant));
  }
  return parts;
}

absl::StatusOr<Json> ReadMessage(JsonFields& fields, const std::string& path, v1::ChatInput& chat) {
  std::string role = fields.String("role").value_or("");
  constexpr const char* kRoles[] = {"user", "assistant", "system", "developer"};
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
    fields.Fail("role", StrCat("is \"", role, "\", wanted user, assistant, system or developer"));
  const Json* content = fields.Any("content");
  fields.Ignore("phase");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  std::string text;
  NIBBLE_ASSIGN_OR_RETURN(Json parts, ReadContent(content, path + "content", role == "assistant", text));
  Json read = {{"type", "message"}, {"status", "completed"}, {"role", role}, {"content", std::move(parts)}};
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role(role == "developer" ? "system" : std::move(role));  // as for chats
  message.set_content(std::move(text));
  return read;
}

}  // namespace

absl::StatusOr<Json> ReadItem(const Json& item, const std::string& path, v1::ChatInput& chat) {
  JsonFields fields(item, path);
  const std::string type = fields.String("type").value_or("message");
  fields.Ignore("id");
  fields.Ignore("status");
  if (type == "message") return ReadMessage(fields, path, chat);
  fields.Fail("type", StrCat("is \"", type, "\", wanted \"message\" or \"item_reference\""));
  return fields.Finish();
}

}  // namespace nibble::openai
