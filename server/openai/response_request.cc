#include "server/openai/response_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/json_fields.h"
#include "server/openai/response_items.h"
#include "server/openai/sampling_fields.h"

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
  fields.Neutral("parallel_tool_calls", true);
  fields.Neutral("service_tier", "auto");
  fields.Neutral("truncation", "disabled");
  fields.Object("reasoning", [](JsonFields& reasoning) { reasoning.Neutral("effort", "none"); });
  fields.Object("text", [](JsonFields& text) {
    text.Object("format", [](JsonFields& format) { format.Neutral("type", "text"); });
    text.Neutral("verbosity", "medium");
  });
  fields.Ignore("prompt_cache_retention");
  fields.Ignore("prompt_cache_options");
  for (const char* name : {"tools", "conversation", "context_management", "max_tool_calls", "moderation", "prompt"})
    fields.Unsupported(name);
  const auto choice = fields.String("tool_choice");
  if (choice.has_value() && *choice != "none" && *choice != "auto")
    fields.Fail("tool_choice", "is not supported without tools; wanted no value, null, \"auto\" or \"none\"");
}

void ReadStream(JsonFields& fields, GenerateCall& call) {
  call.stream = fields.Bool("stream").value_or(false);
  if (fields.Any("stream_options") != nullptr && !call.stream)
    return fields.Fail("stream_options", "is only allowed with stream");
  fields.Object("stream_options", [](JsonFields& options) { options.Neutral("include_obfuscation", false); });
}

absl::Status ReadInput(const Json& input, const FindItem& find_item, ResponseCall& call) {
  v1::ChatInput& chat = *call.generate.prompts.front().mutable_chat();
  const auto add = [&](Json item, const std::string& id) {
    Json with_id = {{"id", id}};
    with_id.update(item);
    call.input.push_back({.id = id, .json = base::Dump(with_id)});
  };
  if (input.is_string()) {
    NIBBLE_ASSIGN_OR_RETURN(Json item, ReadItem({{"role", "user"}, {"content", input}}, "input", chat));
    add(std::move(item), ItemId("msg", call.id, 0));
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
      const auto found = find_item(id);
      if (!found.has_value()) fields.Fail("id", StrCat("there is no item \"", id, "\""));
      NIBBLE_RETURN_IF_ERROR(fields.Finish());
      NIBBLE_ASSIGN_OR_RETURN(const Json item, base::ParseJson(*found));
      NIBBLE_RETURN_IF_ERROR(ReadItem(item, path, chat).status());
      call.input.push_back({.id = id, .json = *found});
      continue;
    }
    NIBBLE_ASSIGN_OR_RETURN(Json item, ReadItem(input[i], path, chat));
    add(std::move(item), ItemId("msg", call.id, i));
  }
  return absl::OkStatus();
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

absl::StatusOr<ResponseCall> ParseResponse(const Json& body, const FindItem& find_item) {
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
               {"parallel_tool_calls", true},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"service_tier", "default"},
               {"text", {{"format", {{"type", "text"}}}, {"verbosity", "medium"}}},
               {"tool_choice", fields.String("tool_choice").value_or("auto")},
               {"tools", Json::array()},
               {"truncation", "disabled"}};
  const Json* input = fields.Any("input");
  if (input == nullptr) fields.Fail("input", "wanted a string or an array of at least one item");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  call.generate.prompts.push_back(std::move(request));
  NIBBLE_RETURN_IF_ERROR(ReadInput(*input, find_item, call));
  return call;
}

absl::Status AddHistory(ResponseCall& call, const Turn* previous) {
  v1::ChatInput all;
  if (call.instructions.has_value()) {
    v1::ChatMessage& message = *all.add_messages();
    message.set_role("system");
    message.set_content(*call.instructions);
  }
  for (const Turn* turn : TurnsUpTo(previous)) {
    for (const auto* items : {&turn->input, &turn->output}) {
      for (const ResponseItem& item : *items) {
        NIBBLE_ASSIGN_OR_RETURN(const Json json, base::ParseJson(item.json));
        NIBBLE_RETURN_IF_ERROR(ReadItem(json, StrCat(item.id, "."), all).status());
      }
    }
  }
  v1::ChatInput& chat = *call.generate.prompts.front().mutable_chat();
  all.MergeFrom(chat);
  chat.Swap(&all);
  return absl::OkStatus();
}

}  // namespace nibble::openai
