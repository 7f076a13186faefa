#include "server/openai/generate_request.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/tool_fields.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

constexpr std::size_t kMaxStops = 4;
// Limits of the gRPC API that are checked here too, because each of up to kMaxPrompts requests has a copy.
constexpr std::size_t kMaxStopBytes = 256;
constexpr std::size_t kMaxStopTokens = 128;
constexpr std::size_t kMaxModelBytes = 128;
constexpr std::size_t kMaxCopiedBytes = 16 << 20;  // as many as 2048 prompts with all fields but a constraint need

void AddStop(JsonFields& fields, const std::string& stop, v1::Stopping& stopping) {
  if (stop.size() > kMaxStopBytes)
    return fields.Fail("stop", StrCat("has a string of ", stop.size(), " bytes, wanted at most ", kMaxStopBytes));
  stopping.add_stop(stop);
}

void ReadStop(JsonFields& fields, v1::Stopping& stopping) {
  const Json* stop = fields.Any("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) return AddStop(fields, stop->get_ref<const std::string&>(), stopping);
  const bool strings =
      stop->is_array() && std::all_of(stop->begin(), stop->end(), [](const Json& one) { return one.is_string(); });
  if (!strings) return fields.Fail("stop", "wanted a string or an array of strings");
  if (stop->size() > kMaxStops)
    return fields.Fail("stop", StrCat("has ", stop->size(), " strings, wanted at most ", kMaxStops));
  for (const Json& one : *stop) AddStop(fields, one.get_ref<const std::string&>(), stopping);
}

// Without a limit, an output ends at an end token or at the model's last position.
void ReadStopping(JsonFields& fields, v1::Stopping& stopping) {
  ReadStop(fields, stopping);
  // Fields of vLLM's API.
  if (const auto value = Int32(fields, "min_tokens")) stopping.set_min_tokens(*value);
  if (const auto value = fields.Bool("ignore_eos")) stopping.set_ignore_eos(*value);
  if (const auto value = fields.Bool("include_stop_str_in_output")) stopping.set_include_stop(*value);
  const Json* ids = fields.Array("stop_token_ids");
  if (ids == nullptr) return;
  if (ids->size() > kMaxStopTokens)
    return fields.Fail("stop_token_ids", StrCat("has ", ids->size(), " tokens, wanted at most ", kMaxStopTokens));
  if (!AddTokenIds(*ids, *stopping.mutable_stop_token_ids()))
    fields.Fail("stop_token_ids", "wanted an array of token ids");
}

// Reads the fields that have no effect here, and those that the server accepts with one value only.
void ReadOtherFields(JsonFields& fields) {
  for (const char* name : {"user", "metadata", "safety_identifier", "prompt_cache_key"}) fields.Ignore(name);
  fields.Neutral("store", false);
  fields.Neutral("service_tier", "auto");
}

void ReadStream(JsonFields& fields, GenerateCall& call) {
  call.stream = fields.Bool("stream").value_or(false);
  if (fields.Any("stream_options") != nullptr && !call.stream)
    return fields.Fail("stream_options", "is only allowed with stream");
  fields.Object("stream_options", [&](JsonFields& options) {
    call.include_usage = options.Bool("include_usage").value_or(false);
    options.Neutral("include_obfuscation", false);
  });
}

// What all prompts of a request share.
v1::GenerateRequest ReadCommon(JsonFields& fields, GenerateCall& call) {
  v1::GenerateRequest request = ReadModelRequest(fields, call);
  ReadStream(fields, call);
  ReadOtherFields(fields);
  if (call.chat) call.constraint_field = ReadResponseFormat(fields, request);
  call.constraint_field = ReadStructuredOutputs(fields, std::move(call.constraint_field), request);
  return request;
}

absl::Status AddPrompts(const Json& prompt, const v1::GenerateRequest& common, std::vector<v1::GenerateRequest>& out) {
  const auto add = [&](const Json& one) -> absl::Status {
    v1::GenerateRequest request = common;
    if (one.is_string()) {
      request.set_text(one.get<std::string>());
    } else if (!one.is_array() || !AddTokenIds(one, *request.mutable_token_ids()->mutable_ids())) {
      return FieldError("prompt", "wanted a string, token ids, or an array of strings or of token ids");
    }
    out.push_back(std::move(request));
    return absl::OkStatus();
  };
  const bool one = prompt.is_string() || (prompt.is_array() && !prompt.empty() && prompt.front().is_number());
  if (one) return add(prompt);
  if (!prompt.is_array()) return add(prompt);  // gives the error
  if (prompt.empty()) return FieldError("prompt", "is an empty array, wanted at least one prompt");
  if (prompt.size() > kMaxPrompts)
    return FieldError("prompt", StrCat("has ", prompt.size(), " prompts, wanted at most ", kMaxPrompts));
  const std::size_t copied = common.ByteSizeLong() * prompt.size();
  if (copied > kMaxCopiedBytes) {
    return FieldError("prompt", StrCat("has ", prompt.size(), " prompts, and each has a copy of the other fields, ",
                                       copied, " bytes in all, wanted at most ", kMaxCopiedBytes));
  }
  for (const Json& each : prompt) NIBBLE_RETURN_IF_ERROR(add(each));
  return absl::OkStatus();
}

// The text of a message: a string, or an array of parts of type "text".
absl::StatusOr<std::string> TextOf(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return FieldError(path, StrCat("is ", TypeName(content), ", wanted a string or an array"));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part = StrCat(path, "[", i, "].");
    JsonFields fields(content[i], part);
    const std::string type = fields.String("type").value_or("");
    if (!fields.failed() && type != "text")
      fields.Fail("type", StrCat("is \"", type, "\", wanted \"text\", the only supported type"));
    text += fields.String("text").value_or("");
    fields.Ignore("cache_control");
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
  }
  return text;
}

}  // namespace

v1::GenerateRequest ReadModelRequest(JsonFields& fields, GenerateCall& call) {
  v1::GenerateRequest request;
  call.model = fields.String("model").value_or("");
  if (call.model.empty()) fields.Fail("model", "is missing or empty, wanted the name of a model");
  if (call.model.size() > kMaxModelBytes) {
    fields.Fail("model", StrCat("has ", call.model.size(), " bytes, wanted at most ", kMaxModelBytes));
    call.model.clear();
  }
  request.set_model(call.model);
  ReadSampling(fields, *request.mutable_sampling());
  ReadStopping(fields, *request.mutable_stopping());
  if (const auto skip = fields.Bool("skip_special_tokens"))
    request.mutable_output()->set_include_special_tokens(!*skip);
  if (const auto value = Int32(fields, "priority")) request.set_priority(*value);
  call.n = request.sampling().has_n() ? request.sampling().n() : 1;
  return request;
}

void ReadMaxTokens(JsonFields& fields, const char* name, int minimum, v1::Stopping& stopping) {
  const auto tokens = Int32(fields, name);
  if (!tokens.has_value()) return;
  if (*tokens < minimum) return fields.Fail(name, StrCat("is ", *tokens, ", wanted at least ", minimum));
  stopping.set_max_tokens(*tokens);
}

absl::StatusOr<v1::ChatInput> ParseMessages(const Json& messages, std::string_view path) {
  v1::ChatInput chat;
  if (!messages.is_array() || messages.empty()) return FieldError(path, "wanted an array of at least one message");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string at = StrCat(path, "[", i, "].");
    JsonFields fields(messages[i], at);
    std::string role = fields.String("role").value_or("");
    if (role.empty()) fields.Fail("role", "wanted a role such as \"user\"");
    if (role == "developer") role = "system";  // models' templates know only the older name
    const Json* content = fields.Any("content");
    const Json* calls = fields.Any("tool_calls");
    v1::ChatMessage& message = *chat.add_messages();
    message.set_name(fields.String("name").value_or(""));
    message.set_tool_call_id(fields.String("tool_call_id").value_or(""));
    for (const char* name : {"function_call", "audio", "refusal", "annotations"}) fields.Unsupported(name);
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    if (calls != nullptr) {
      NIBBLE_RETURN_IF_ERROR(ParseToolCalls(*calls, StrCat(at, "tool_calls"), *message.mutable_tool_calls()));
    }
    if (content != nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(*message.mutable_content(), TextOf(*content, StrCat(at, "content")));
    } else if (message.tool_calls().empty()) {
      return FieldError(StrCat(at, "content"), "wanted a string or an array");
    }
    message.set_role(std::move(role));
  }
  return chat;
}

absl::StatusOr<GenerateCall> ParseCompletion(const Json& body) {
  JsonFields fields(body);
  GenerateCall call;
  v1::GenerateRequest common = ReadCommon(fields, call);
  common.mutable_stopping()->set_max_tokens(16);  // OpenAI's default
  call.echo = fields.Bool("echo").value_or(false);
  ReadMaxTokens(fields, "max_tokens", call.echo ? 0 : 1, *common.mutable_stopping());
  fields.Neutral("best_of", 1);
  fields.Neutral("suffix", "");
  call.score_only = common.stopping().max_tokens() == 0;
  if (call.score_only) common.mutable_stopping()->set_max_tokens(1);
  if (const auto logprobs = Int32(fields, "logprobs")) {
    call.logprobs = *logprobs;
    common.mutable_output()->set_logprobs(*logprobs);
    if (call.echo) common.mutable_output()->set_prompt_logprobs(*logprobs);
  }
  if (call.echo) common.mutable_output()->set_echo(true);
  const Json* prompt = fields.Any("prompt");
  if (prompt == nullptr) fields.Fail("prompt", "wanted a text, token ids, or an array of these");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  NIBBLE_RETURN_IF_ERROR(AddPrompts(*prompt, common, call.prompts));
  return call;
}

absl::StatusOr<GenerateCall> ParseChat(const Json& body) {
  JsonFields fields(body);
  GenerateCall call;
  call.chat = true;
  v1::GenerateRequest request = ReadCommon(fields, call);
  v1::Stopping& stopping = *request.mutable_stopping();
  ReadMaxTokens(fields, "max_tokens", 1, stopping);
  const bool old_name = stopping.has_max_tokens();
  const std::int32_t old_value = stopping.max_tokens();
  ReadMaxTokens(fields, "max_completion_tokens", 1, stopping);
  if (old_name && stopping.max_tokens() != old_value)
    fields.Fail("max_tokens", "differs from max_completion_tokens, its new name; wanted only one of them");
  if (stopping.has_max_tokens() && !old_name) call.max_tokens_field = "max_completion_tokens";
  if (!stopping.has_max_tokens()) stopping.set_max_tokens(std::numeric_limits<std::int32_t>::max());
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = Int32(fields, "top_logprobs");
  if (top.has_value() && !logprobs) fields.Fail("top_logprobs", "is only allowed with logprobs");
  if (logprobs) {
    call.logprobs = top.value_or(0);
    request.mutable_output()->set_logprobs(*call.logprobs);
  }
  for (const char* name : {"functions", "function_call", "audio", "prediction", "web_search_options"})
    fields.Unsupported(name);
  const Json* tools = fields.Any("tools");
  const Json* tool_choice = fields.Any("tool_choice");
  if (const auto parallel = fields.Bool("parallel_tool_calls")) request.set_parallel_tool_calls(*parallel);
  fields.Neutral("modalities", {"text"});
  fields.Neutral("reasoning_effort", "none");
  fields.Neutral("verbosity", "medium");
  if (const auto generate = fields.Bool("add_generation_prompt"))
    request.mutable_chat()->set_add_generation_prompt(*generate);
  const Json* messages = fields.Any("messages");
  if (messages == nullptr) fields.Fail("messages", "wanted an array of at least one message");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  NIBBLE_ASSIGN_OR_RETURN(v1::ChatInput chat, ParseMessages(*messages, "messages"));
  request.mutable_chat()->mutable_messages()->Swap(chat.mutable_messages());
  if (tools != nullptr) NIBBLE_RETURN_IF_ERROR(ParseTools(*tools, "tools", *request.mutable_chat()->mutable_tools()));
  if (tool_choice != nullptr) NIBBLE_RETURN_IF_ERROR(ParseToolChoice(*tool_choice, "tool_choice", request));
  call.prompts.push_back(std::move(request));
  return call;
}

}  // namespace nibble::openai
