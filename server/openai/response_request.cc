#include "server/openai/response_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/json_fields.h"
#include "server/openai/response_items.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/tool_fields.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

// As OpenAI's limits.
constexpr std::size_t kMaxMetadata = 16;
constexpr std::size_t kMaxMetadataKey = 64;
constexpr std::size_t kMaxMetadataValue = 512;

constexpr char kLogprobs[] = "message.output_text.logprobs";
constexpr char kReasoning[] = "reasoning.encrypted_content";  // libraries ask for it with every request

Json OrNull(const std::optional<std::string>& text) { return text.has_value() ? Json(*text) : Json(nullptr); }

// An array of `include` has names of optional parts of the answer.
bool ReadInclude(JsonFields& fields) {
  const Json* include = fields.Array("include");
  if (include == nullptr) return false;
  bool logprobs = false;
  for (const Json& one : *include) {
    logprobs = logprobs || one == kLogprobs;
    if (one != kLogprobs && one != kReasoning)
      fields.Fail("include", StrCat("has ", base::Dump(one), ", wanted \"", kLogprobs, "\", the only supported value"));
  }
  return logprobs;
}

Json ReadMetadata(JsonFields& fields) {
  const Json* metadata = fields.Any("metadata");
  if (metadata == nullptr) return Json::object();
  if (!metadata->is_object()) {
    fields.Fail("metadata", StrCat("is ", TypeName(*metadata), ", wanted an object"));
  } else if (metadata->size() > kMaxMetadata) {
    fields.Fail("metadata", StrCat("has ", metadata->size(), " keys, wanted at most ", kMaxMetadata));
  } else {
    for (const auto& [key, value] : metadata->items()) {
      if (key.size() > kMaxMetadataKey)
        fields.Fail("metadata", StrCat("has a key of ", key.size(), " bytes, wanted at most ", kMaxMetadataKey));
      if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxMetadataValue)
        fields.Fail("metadata", StrCat("has ", value.is_string() ? "a long string" : TypeName(value), " for \"", key,
                                       "\", wanted a string of at most ", kMaxMetadataValue, " bytes"));
    }
  }
  return *metadata;
}

// Fields that the server accepts with one value only.
void ReadNeutral(JsonFields& fields) {
  fields.Neutral("background", false);
  fields.Neutral("n", 1);
  fields.Neutral("service_tier", "auto");
  fields.Neutral("truncation", "disabled");
  fields.Object("reasoning", [](JsonFields& reasoning) {
    reasoning.Neutral("effort", "none");
    for (const char* name : {"context", "generate_summary", "mode", "summary"}) reasoning.Unsupported(name);
  });
  fields.Ignore("prompt_cache_retention");
  fields.Ignore("prompt_cache_options");
  for (const char* name : {"conversation", "context_management", "max_tool_calls", "moderation", "prompt"})
    fields.Unsupported(name);
}

// Reads `text`, whose format may constrain the answer. Returns the format.
Json ReadText(JsonFields& fields, ResponseCall& call, v1::GenerateRequest& request) {
  Json format = {{"type", "text"}};
  fields.Object("text", [&](JsonFields& text) {
    text.Neutral("verbosity", "medium");
    const Json* given = text.Any("format");
    if (given == nullptr) return;
    text.FailWith(SetFormat(*given, "text.format", request));
    if (request.constraint_case() != v1::GenerateRequest::CONSTRAINT_NOT_SET)
      call.generate.constraint_field = "text.format";
    format = *given;
  });
  return format;
}

void ReadStream(JsonFields& fields, GenerateCall& call) {
  call.stream = fields.Bool("stream").value_or(false);
  if (fields.Any("stream_options") != nullptr && !call.stream)
    return fields.Fail("stream_options", "is only allowed with stream");
  fields.Object("stream_options", [](JsonFields& options) { options.Neutral("include_obfuscation", false); });
}

absl::Status ReadInput(const Json& input, const FindItem& find_item, std::size_t max_bytes, ResponseCall& call) {
  call.input_bytes = call.instructions.value_or("").size();
  const auto add = [&](const Json& item, std::size_t number) {
    Json with_id = {{"id", ItemId(item["type"] == "message" ? "msg" : "fc", call.id, number)}};
    with_id.update(item);
    call.input.push_back({.id = with_id["id"], .json = base::Dump(with_id)});
    call.input_bytes += call.input.back().json.size();
  };
  if (input.is_string()) {
    NIBBLE_ASSIGN_OR_RETURN(const Json item, CheckItem({{"role", "user"}, {"content", input}}, "input"));
    add(item, 0);
    return absl::OkStatus();
  }
  if (!input.is_array() || input.empty())
    return FieldError("input", "wanted a string or an array of at least one item");
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string path = StrCat("input[", i, "].");
    if (const auto type = input[i].is_object() ? input[i].find("type") : input[i].end();
        type != input[i].end() && *type == "item_reference") {
      JsonFields fields(input[i], path);
      fields.Ignore("type");
      const std::string id = fields.String("id").value_or("");
      auto found = find_item(id);
      if (!found.has_value()) fields.Fail("id", StrCat("there is no item \"", id, "\""));
      const std::size_t bytes = call.input_bytes + (found.has_value() ? found->json.size() : 0);
      if (bytes > max_bytes)
        fields.Fail("id", StrCat("the items up to this one have ", bytes, " bytes, wanted at most ", max_bytes));
      NIBBLE_RETURN_IF_ERROR(fields.Finish());
      // With an id of its own, because the conversation may have the item already.
      Json item = Json::parse(found->json);
      item.erase("id");
      add(item, i);
      continue;
    }
    NIBBLE_ASSIGN_OR_RETURN(const Json item, CheckItem(input[i], path));
    add(item, i);
  }
  return absl::OkStatus();
}

// Reads the tools into `request`, and returns them with all their fields.
absl::StatusOr<Json> ReadTools(const Json& tools, v1::GenerateRequest& request) {
  Json echo = Json::array();
  if (!tools.is_array()) return FieldError("tools", StrCat("is ", TypeName(tools), ", wanted an array"));
  for (std::size_t i = 0; i < tools.size(); ++i) {
    JsonFields fields(tools[i], StrCat("tools[", i, "]."));
    ReadFunctionType(fields, "");
    v1::Tool& tool = *request.mutable_chat()->add_tools();
    ReadFunction(fields, tool);
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    Json one = {{"type", "function"}, {"name", tool.name()}};
    for (const char* name : {"description", "parameters"}) one[name] = tools[i].value(name, Json());
    one["strict"] = tool.strict();
    echo.push_back(std::move(one));
  }
  return echo;
}

// A function is {"type", "name"} here, where chats nest it as {"type", "function": {"name"}}.
absl::Status ReadToolChoice(const Json& choice, v1::GenerateRequest& request) {
  if (!choice.is_object()) return ParseToolChoice(choice, "tool_choice", request);
  JsonFields fields(choice, "tool_choice.");
  ReadFunctionType(fields, "");
  const std::string name = fields.String("name").value_or("");
  if (name.empty()) fields.Fail("name", "wanted the name of a function");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  return ParseToolChoice({{"type", "function"}, {"function", {{"name", name}}}}, "tool_choice", request);
}

}  // namespace

std::string ItemId(std::string_view prefix, std::string_view response_id, std::size_t number) {
  return StrCat(prefix, response_id.substr(response_id.find('_')), "_", number);
}

std::string ResponseIdOf(std::string_view item_id) {
  const std::size_t begin = item_id.find('_');
  const std::size_t end = item_id.rfind('_');
  return begin == end ? "" : StrCat("resp", item_id.substr(begin, end - begin));
}

const ResponseItem* FindItemOf(const Turn& turn, std::string_view item_id) {
  std::size_t number = 0;  // of the item in the input, if it is there
  if (absl::SimpleAtoi(base::ToAbsl(item_id.substr(item_id.rfind('_') + 1)), &number) && number < turn.input.size())
    return turn.input[number].id == item_id ? &turn.input[number] : nullptr;
  for (const ResponseItem& item : turn.output) {
    if (item.id == item_id) return &item;
  }
  return nullptr;
}

absl::StatusOr<ResponseCall> ParseResponse(const Json& body, const FindItem& find_item, std::size_t max_input_bytes) {
  JsonFields fields(body);
  ResponseCall call;
  call.id = StrCat("resp_", base::NewId("").substr(1));
  call.generate.chat = true;
  call.generate.max_tokens_field = "max_output_tokens";
  call.generate.messages_field = "input";
  v1::GenerateRequest request = ReadModelRequest(fields, call.generate);
  v1::Stopping& stopping = *request.mutable_stopping();
  ReadMaxTokens(fields, "max_output_tokens", 1, stopping);
  const Json max_tokens = stopping.has_max_tokens() ? Json(stopping.max_tokens()) : Json(nullptr);
  if (!stopping.has_max_tokens()) stopping.set_max_tokens(std::numeric_limits<std::int32_t>::max());
  const bool logprobs = ReadInclude(fields);
  const auto top = Int32(fields, "top_logprobs");
  if (top.value_or(0) != 0 && !logprobs)
    fields.Fail("top_logprobs", StrCat("is only allowed with \"", kLogprobs, "\" in include"));
  if (logprobs) {
    call.generate.logprobs = top.value_or(0);
    request.mutable_output()->set_logprobs(*call.generate.logprobs);
  }
  ReadNeutral(fields);
  ReadStream(fields, call.generate);
  const Json* tools = fields.Any("tools");
  const Json* tool_choice = fields.Any("tool_choice");
  const auto parallel = fields.Bool("parallel_tool_calls");
  if (parallel.has_value()) request.set_parallel_tool_calls(*parallel);
  call.instructions = fields.String("instructions");
  call.previous_response_id = fields.String("previous_response_id").value_or("");
  call.store = fields.Bool("store");
  call.echo = {{"model", call.generate.model},
               {"instructions", OrNull(call.instructions)},
               {"previous_response_id", call.previous_response_id.empty() ? Json() : Json(call.previous_response_id)},
               {"max_output_tokens", max_tokens},
               {"temperature", request.sampling().temperature()},
               {"top_p", request.sampling().has_top_p() ? request.sampling().top_p() : 1.0},
               {"top_logprobs", top.value_or(0)},
               {"metadata", ReadMetadata(fields)},
               {"user", OrNull(fields.String("user"))},
               {"safety_identifier", OrNull(fields.String("safety_identifier"))},
               {"prompt_cache_key", OrNull(fields.String("prompt_cache_key"))},
               {"background", false},
               {"max_tool_calls", nullptr},
               {"parallel_tool_calls", parallel.value_or(true)},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"service_tier", "default"},
               {"text", {{"format", ReadText(fields, call, request)}, {"verbosity", "medium"}}},
               {"tool_choice", tool_choice == nullptr ? Json("auto") : *tool_choice},
               {"tools", Json::array()},
               {"truncation", "disabled"}};
  const Json* input = fields.Any("input");
  if (input == nullptr) fields.Fail("input", "wanted a string or an array of at least one item");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  if (tools != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(call.echo["tools"], ReadTools(*tools, request));
  }
  const bool may_call = !request.chat().tools().empty();
  if (tool_choice != nullptr && (may_call || *tool_choice != "auto"))
    NIBBLE_RETURN_IF_ERROR(ReadToolChoice(*tool_choice, request));
  call.generate.prompts.push_back(std::move(request));
  NIBBLE_RETURN_IF_ERROR(ReadInput(*input, find_item, max_input_bytes, call));
  return call;
}

absl::Status AddMessages(ResponseCall& call, const Turn* previous) {
  v1::ChatInput& chat = *call.generate.prompts.front().mutable_chat();
  if (call.instructions.has_value()) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role("system");
    message.set_content(*call.instructions);
  }
  ItemMessages messages(chat);
  const auto add = [&](const ResponseItem& item, const std::string& path) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const Json json, base::ParseJson(item.json));
    return messages.Add(json, path);
  };
  for (const Turn* turn : TurnsUpTo(previous)) {
    for (const auto* items : {&turn->input, &turn->output}) {
      for (const ResponseItem& item : *items) NIBBLE_RETURN_IF_ERROR(add(item, item.id + "."));
    }
  }
  for (std::size_t i = 0; i < call.input.size(); ++i)
    NIBBLE_RETURN_IF_ERROR(add(call.input[i], StrCat("input[", i, "].")));
  return absl::OkStatus();
}

}  // namespace nibble::openai
