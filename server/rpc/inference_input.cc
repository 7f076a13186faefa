#include "server/rpc/inference_input.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/chat_tools.h"
#include "server/rpc/model_name.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;

constexpr int kMaxStops = 16;
constexpr int kMaxStopTokens = 128;
constexpr std::size_t kMaxStopBytes = 256;
constexpr int kMaxLogprobs = 20;
constexpr int kMaxOutputs = 16;
constexpr int kMaxLogitBias = 300;
constexpr int kMaxPriority = 100;
constexpr double kMaxRepetitionPenalty = 1000;  // keeps divided and multiplied logits in the range of f32

absl::Status CheckRange(const char* field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, StrCat("is ", value, ", wanted ", low, " to ", high));
}

absl::Status TakePenalties(const v1::Sampling& sampling, serve::Penalties& out) {
  if (sampling.has_repetition_penalty()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.repetition_penalty", sampling.repetition_penalty(),
                                      1 / kMaxRepetitionPenalty, kMaxRepetitionPenalty));
    out.repetition = static_cast<float>(sampling.repetition_penalty());
  }
  NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", sampling.presence_penalty(), -2, 2));
  NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", sampling.frequency_penalty(), -2, 2));
  out.presence = static_cast<float>(sampling.presence_penalty());
  out.frequency = static_cast<float>(sampling.frequency_penalty());
  if (sampling.logit_bias_size() > kMaxLogitBias) {
    return FieldError("sampling.logit_bias",
                      StrCat("has ", sampling.logit_bias_size(), " tokens, wanted at most ", kMaxLogitBias));
  }
  for (const auto& [token, bias] : sampling.logit_bias()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.logit_bias", bias, -100, 100));
    out.bias.emplace_back(token, static_cast<float>(bias));
  }
  return absl::OkStatus();
}

absl::Status TakeSampling(const v1::Sampling& sampling, GenerateOptions& out) {
  if (sampling.has_n()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.n", sampling.n(), 1, kMaxOutputs));
    out.request.n = sampling.n();
  }
  NIBBLE_RETURN_IF_ERROR(TakePenalties(sampling, out.request.penalties));
  kernels::SampleParams& params = out.request.sampling;
  if (sampling.has_temperature()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.temperature", sampling.temperature(), 0, 100));
    params.temperature = static_cast<float>(sampling.temperature());
  }
  if (sampling.has_top_k()) {
    if (sampling.top_k() < 0)
      return FieldError("sampling.top_k", StrCat("is ", sampling.top_k(), ", wanted at least 0"));
    params.top_k = sampling.top_k();
  }
  if (sampling.has_top_p()) {
    params.top_p = static_cast<float>(sampling.top_p());
    if (!(params.top_p > 0 && sampling.top_p() <= 1)) {  // a double above 0 may become 0 as f32
      return FieldError("sampling.top_p", StrCat("is ", sampling.top_p(), ", wanted above 0, at most 1"));
    }
  }
  if (sampling.has_min_p()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("sampling.min_p", sampling.min_p(), 0, 1));
    params.min_p = static_cast<float>(sampling.min_p());
  }
  if (params.temperature > 0) {
    out.seed = sampling.has_seed() ? sampling.seed() : static_cast<std::int64_t>(std::random_device{}());
    params.seed = static_cast<std::uint64_t>(out.seed);
  }
  return absl::OkStatus();
}

absl::Status TakeStopping(const v1::Stopping& stopping, std::int64_t default_max_tokens, serve::Stopping& out) {
  out.max_tokens = default_max_tokens;
  if (stopping.has_max_tokens()) {
    if (stopping.max_tokens() < 1) {
      return FieldError("stopping.max_tokens", StrCat("is ", stopping.max_tokens(), ", wanted at least 1"));
    }
    out.max_tokens = stopping.max_tokens();
  }
  if (stopping.min_tokens() < 0) {
    return FieldError("stopping.min_tokens", StrCat("is ", stopping.min_tokens(), ", wanted at least 0"));
  }
  out.min_tokens = stopping.min_tokens();
  if (stopping.stop_size() > kMaxStops) {
    return FieldError("stopping.stop", StrCat("has ", stopping.stop_size(), " strings, wanted at most ", kMaxStops));
  }
  for (const std::string& stop : stopping.stop()) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return FieldError("stopping.stop",
                        StrCat("has a string of ", stop.size(), " bytes, wanted 1 to ", kMaxStopBytes));
    }
    out.strings.push_back(stop);
  }
  if (stopping.stop_token_ids_size() > kMaxStopTokens) {
    return FieldError("stopping.stop_token_ids",
                      StrCat("has ", stopping.stop_token_ids_size(), " tokens, wanted at most ", kMaxStopTokens));
  }
  out.token_ids.assign(stopping.stop_token_ids().begin(), stopping.stop_token_ids().end());
  out.ignore_eos = stopping.ignore_eos();
  out.include_stop = stopping.include_stop();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::int32_t>> IdsOf(const v1::TokenIds& ids, const text::PromptLimits& limits) {
  if (ids.ids_size() > limits.max_tokens) {
    return base::WithReason(absl::InvalidArgumentError(StrCat("token_ids: has ", ids.ids_size(),
                                                              " tokens, the model takes ", limits.max_tokens)),
                            "PROMPT_TOO_LONG",
                            {{"tokens", std::to_string(ids.ids_size())}, {"max", std::to_string(limits.max_tokens)}});
  }
  return std::vector<std::int32_t>(ids.ids().begin(), ids.ids().end());
}

}  // namespace

absl::StatusOr<GenerateOptions> FromProto(const v1::GenerateRequest& request, bool chat) {
  if (request.model().empty()) return FieldError("model", "is empty, wanted a model's name");
  NIBBLE_RETURN_IF_ERROR(CheckModelName("GenerateRequest.model", request.model()));
  if (request.input_case() == v1::GenerateRequest::INPUT_NOT_SET) {
    return FieldError("input", "is not set, wanted text, token_ids or chat");
  }
  if (chat && !request.has_chat()) return FieldError("chat", "is not set, wanted a conversation");
  NIBBLE_RETURN_IF_ERROR(CheckTools(request.chat()));
  NIBBLE_RETURN_IF_ERROR(CheckToolChoice(request));
  GenerateOptions out;
  NIBBLE_ASSIGN_OR_RETURN(out.constraint, ConstraintOf(request));
  if (MayCallTools(request)) {
    out.tools.emplace();
    for (const v1::Tool& tool : request.chat().tools()) out.tools->names.push_back(tool.name());
    out.tools->parallel = CallsInParallel(request);
  }
  NIBBLE_RETURN_IF_ERROR(TakeSampling(request.sampling(), out));
  NIBBLE_RETURN_IF_ERROR(
      TakeStopping(request.stopping(), chat ? kChatMaxTokens : kGenerateMaxTokens, out.request.stopping));
  const v1::OutputOptions& output = request.output();
  if (output.has_logprobs()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("output.logprobs", output.logprobs(), 0, kMaxLogprobs));
    out.logprobs = true;
    out.num_logprobs = output.logprobs();
  }
  if (output.has_prompt_logprobs()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("output.prompt_logprobs", output.prompt_logprobs(), 0, kMaxLogprobs));
    out.prompt_logprobs = true;
    out.num_prompt_logprobs = output.prompt_logprobs();
  }
  out.echo = output.echo();
  out.request.include_special_tokens = output.include_special_tokens();
  NIBBLE_RETURN_IF_ERROR(CheckRange("priority", request.priority(), -kMaxPriority, kMaxPriority));
  out.request.priority = request.priority();
  if (request.has_queue_timeout()) {
    out.queue_timeout = FromProto(request.queue_timeout());
    if (*out.queue_timeout <= absl::ZeroDuration()) {
      return FieldError("queue_timeout", StrCat("is ", absl::FormatDuration(*out.queue_timeout), ", wanted above 0"));
    }
  }
  out.request.logprobs = out.logprobs;
  out.request.prompt_logprobs = out.prompt_logprobs;
  out.request.top_logprobs = std::max(out.num_logprobs, out.num_prompt_logprobs);
  return out;
}

absl::Status CheckTextBytes(const char* field, std::size_t bytes, std::size_t max_bytes) {
  if (bytes <= max_bytes) return absl::OkStatus();
  const std::string counted =
      field == std::string_view("chat") ? StrCat(", including ", kMessageBytes, " per message") : "";
  return base::WithReason(absl::InvalidArgumentError(StrCat(field, ": has ", bytes, " bytes", counted,
                                                            ", wanted at most ", max_bytes, " (--max_prompt_bytes)")),
                          "PROMPT_TOO_LONG",
                          {{"bytes", std::to_string(bytes)}, {"max_bytes", std::to_string(max_bytes)}});
}

absl::Status CheckTokenCount(std::size_t tokens, std::size_t max_bytes) {
  if (tokens <= max_bytes) return absl::OkStatus();
  return base::WithReason(absl::InvalidArgumentError(StrCat("token_ids: has ", tokens, " tokens, wanted at most ",
                                                            max_bytes, " (--max_prompt_bytes)")),
                          "PROMPT_TOO_LONG", {{"tokens", std::to_string(tokens)}, {"max", std::to_string(max_bytes)}});
}

absl::StatusOr<std::string> Render(const v1::ChatInput& chat, const model::TextAssets& assets, std::size_t max_bytes) {
  if (chat.messages().empty()) return FieldError("chat.messages", "is empty, wanted at least one message");
  if (assets.chat_template == nullptr) {
    return base::WithReason(absl::InvalidArgumentError("chat: the model has no chat template"), "TEMPLATE_ERROR",
                            {{"field", "chat_template"}});
  }
  NIBBLE_RETURN_IF_ERROR(CheckTextBytes("chat", ChatBytes(chat), max_bytes));
  NIBBLE_RETURN_IF_ERROR(CheckTools(chat));
  const bool calls = HasToolCalls(chat), tools = !chat.tools().empty() || calls;
  if (tools && !assets.tool_format.ok()) {
    const char* field = calls && chat.tools().empty() ? "chat.messages.tool_calls" : "chat.tools";
    return base::WithReason(
        absl::InvalidArgumentError(StrCat(field, ": ", base::ToStd(assets.tool_format.status().message()))),
        "TEMPLATE_ERROR", {{"field", field}});
  }
  text::RenderOptions options;
  options.add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  options.tools_json = ToolsJson(chat);
  auto rendered = (tools ? assets.tool_template : assets.chat_template)->RenderJson(MessagesJson(chat), options);
  if (rendered.ok()) return rendered;
  return base::WithReason(
      absl::Status(rendered.status().code(), StrCat("chat template: ", base::ToStd(rendered.status().message()))),
      "TEMPLATE_ERROR", {{"field", "chat.messages"}});
}

void UseToolFormat(const model::TextAssets& text, GenerateOptions& options) {
  if (!options.tools.has_value() || !text.tool_format.ok()) return;
  options.tools->format = *text.tool_format;
  for (const std::string_view marker : text::MarkersOf(*text.tool_format)) {
    const auto id = text.tokenizer->TokenId(marker);
    if (id.has_value()) options.request.shown_special_tokens.push_back(*id);
  }
}

absl::StatusOr<std::vector<std::int32_t>> EncodeText(const std::string& text, bool add_special_tokens,
                                                     const model::TextAssets& assets, text::PromptLimits limits) {
  limits.field = "text";
  // Same as for a training row: special tokens that the text already has are not added again.
  return text::EncodePrompt(*assets.tokenizer, text, add_special_tokens, limits);
}

absl::StatusOr<std::vector<std::int32_t>> EncodeChat(const std::string& rendered, const model::TextAssets& assets,
                                                     text::PromptLimits limits) {
  limits.field = "chat";
  return text::EncodePrompt(*assets.tokenizer, rendered, /*add_special_tokens=*/false, limits);
}

absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::GenerateRequest& request, std::string rendered,
                                                   const model::TextAssets& assets, const text::PromptLimits& limits,
                                                   std::string* text) {
  const bool include_special_tokens = request.output().include_special_tokens();
  switch (request.input_case()) {
    case v1::GenerateRequest::kText:
      if (text != nullptr) *text = request.text();
      return EncodeText(request.text(), /*add_special_tokens=*/true, assets, limits);
    case v1::GenerateRequest::kTokenIds: {
      NIBBLE_ASSIGN_OR_RETURN(std::vector<std::int32_t> ids, IdsOf(request.token_ids(), limits));
      if (text != nullptr) {
        for (const std::int32_t id : ids) {
          if (id < 0) return FieldError("token_ids", StrCat("has ", id, ", wanted 0 or more"));
        }
        NIBBLE_ASSIGN_OR_RETURN(*text, assets.tokenizer->Decode(ids, /*skip_special_tokens=*/!include_special_tokens));
      }
      return ids;
    }
    default: {
      NIBBLE_ASSIGN_OR_RETURN(std::vector<std::int32_t> ids, EncodeChat(rendered, assets, limits));
      if (text != nullptr && include_special_tokens) {
        *text = std::move(rendered);
      } else if (text != nullptr) {
        NIBBLE_ASSIGN_OR_RETURN(*text, assets.tokenizer->Decode(ids, /*skip_special_tokens=*/true));
      }
      return ids;
    }
  }
}

absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::ScoreRequest& request, const std::string& rendered,
                                                   const model::TextAssets& assets, const text::PromptLimits& limits) {
  switch (request.input_case()) {
    case v1::ScoreRequest::kText:
      return EncodeText(request.text(), !request.has_add_special_tokens() || request.add_special_tokens(), assets,
                        limits);
    case v1::ScoreRequest::kTokenIds: return IdsOf(request.token_ids(), limits);
    case v1::ScoreRequest::kChat: return EncodeChat(rendered, assets, limits);
    default: return FieldError("input", "is not set, wanted text, token_ids or chat");
  }
}

v1::FinishReason ToProto(serve::FinishReason reason) {
  switch (reason) {
    case serve::FinishReason::kStop: return v1::FINISH_REASON_STOP;
    case serve::FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case serve::FinishReason::kEos: return v1::FINISH_REASON_EOS;
    case serve::FinishReason::kCancelled: return v1::FINISH_REASON_CANCELLED;
    case serve::FinishReason::kDeadline: return v1::FINISH_REASON_DEADLINE;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::TokenLogprob TokenWithoutLogprob(std::int32_t id, const text::TokenBytes& bytes) {
  v1::TokenLogprob out;
  out.set_token_id(id);
  out.set_token(std::string(bytes.Of(id)));
  return out;
}

v1::TokenLogprob ToProto(const serve::TokenLogprob& token, std::int64_t num_top, const text::TokenBytes& bytes) {
  v1::TokenLogprob out = TokenWithoutLogprob(token.token, bytes);
  out.set_logprob(token.logprob);
  out.set_logits_digest(token.logits_digest);
  for (std::size_t i = 0; i < token.top.size() && static_cast<std::int64_t>(i) < num_top; ++i) {
    auto* top = out.add_top();
    top->set_token_id(token.top[i].first);
    top->set_logprob(token.top[i].second);
    top->set_token(std::string(bytes.Of(token.top[i].first)));
  }
  return out;
}

v1::Usage ToProto(const serve::Usage& usage) {
  v1::Usage out;
  out.set_prompt_tokens(static_cast<std::int32_t>(usage.prompt_tokens));
  out.set_completion_tokens(static_cast<std::int32_t>(usage.completion_tokens));
  out.set_ttft_ms(usage.ttft_ms);
  out.set_prefill_ms(usage.prefill_ms);
  out.set_decode_ms(usage.decode_ms);
  out.set_kernel_launches(static_cast<std::int64_t>(usage.kernel_launches));
  return out;
}

}  // namespace nibble::rpc
