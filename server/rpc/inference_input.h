// Validates requests of InferenceService and converts them to the engine's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/model/text_assets.h"
#include "server/rpc/constraint.h"
#include "server/serve/request.h"
#include "server/text/prompt_length.h"
#include "server/text/token_bytes.h"
#include "server/text/tool_parser.h"

namespace nibble::rpc {

// Defaults of stopping.max_tokens.
inline constexpr std::int64_t kGenerateMaxTokens = 128;
inline constexpr std::int64_t kChatMaxTokens = 256;

// The engine's request, and the options of a GenerateRequest that the engine does not see.
struct GenerateOptions {
  serve::Request request;  // without prompt, grammar, deadline and cancel
  std::int64_t seed = 0;   // the seed in use; 0 for greedy
  bool logprobs = false;
  std::int64_t num_logprobs = 0;
  bool prompt_logprobs = false;
  std::int64_t num_prompt_logprobs = 0;
  bool echo = false;
  // If the answer may have calls of tools; UseToolFormat sets the format.
  std::optional<text::ToolParser::Options> tools;
  std::optional<absl::Duration> queue_timeout;
  std::optional<Constraint> constraint;
  std::shared_ptr<const text::Grammar> grammar;  // of the constraint, if it was compiled before
};

// `chat`: the method is Chat, which requires a chat and has its own default of max_tokens. Errors: Unimplemented names
// the field; InvalidArgument names a field that is missing or out of range. Does not look at the model.
absl::StatusOr<GenerateOptions> FromProto(const v1::GenerateRequest& request, bool chat);

// Estimated bytes that a template adds to each message. Many empty messages can render to a large text.
inline constexpr std::size_t kMessageBytes = 32;

// A template may render every field of a message, including its role.
inline std::size_t ChatBytes(const v1::ChatInput& chat) {
  return chat.ByteSizeLong() + kMessageBytes * static_cast<std::size_t>(chat.messages_size());
}

// Bytes of the text to encode, before a template is applied; 0 for token ids. Request: a message with a `chat`, and
// perhaps a `text`.
template <typename Request>
std::size_t TextBytes(const Request& request) {
  if constexpr (requires { request.has_text(); }) {
    if (request.has_text()) return request.text().size();
  }
  return request.has_chat() ? ChatBytes(request.chat()) : 0;
}

// The conversation as the model's template renders it. Errors: InvalidArgument TEMPLATE_ERROR (field chat.messages: the
// template fails on the messages; field chat_template: the model has none; field chat.tools or
// chat.messages.tool_calls: it does not support tools) | PROMPT_TOO_LONG (ChatBytes exceed `max_bytes`) |
// FIELD_VIOLATION (no messages; a field of a tool or a call).
absl::StatusOr<std::string> Render(const v1::ChatInput& chat, const model::TextAssets& text, std::size_t max_bytes);

// Prepares a request whose chat was rendered for calls of tools, if it has tools: sets their format, and shows the
// special tokens that mark them.
void UseToolFormat(const model::TextAssets& text, GenerateOptions& options);

// Renders the request's chat; "" if the request has none.
template <typename Request>
absl::StatusOr<std::string> Rendered(const Request& request, const model::TextAssets& text, std::size_t max_bytes) {
  if (!request.has_chat()) return std::string();
  return Render(request.chat(), text, max_bytes);
}

// The token ids of a text. `add_special_tokens`: with the special tokens that training adds to a row. `limits` is
// passed to text::EncodePrompt; limits.field is ignored.
absl::StatusOr<std::vector<std::int32_t>> EncodeText(const std::string& text, bool add_special_tokens,
                                                     const model::TextAssets& assets, text::PromptLimits limits);
// The token ids of a rendered chat. Adds no special tokens: the template writes its own.
absl::StatusOr<std::vector<std::int32_t>> EncodeChat(const std::string& rendered, const model::TextAssets& assets,
                                                     text::PromptLimits limits);

// The prompt's token ids. `rendered`: the result of Rendered. `text` receives the prompt as text for echo; nullptr: no
// echo. A prompt that exceeds `limits` is refused before it is encoded as a whole or decoded. limits.field is ignored.
absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::GenerateRequest& request, std::string rendered,
                                                   const model::TextAssets& assets, const text::PromptLimits& limits,
                                                   std::string* text);
absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::ScoreRequest& request, const std::string& rendered,
                                                   const model::TextAssets& assets, const text::PromptLimits& limits);

// Name of the member of `input` that is set. Request: GenerateRequest or ScoreRequest, whose `input` is set.
template <typename Request>
const char* InputField(const Request& request) {
  return request.has_text() ? "text" : request.has_token_ids() ? "token_ids" : "chat";
}

// CheckTextBytes: InvalidArgument (PROMPT_TOO_LONG) if a text or chat has more than `max_bytes`. CheckTokenCount: the
// same if there are more than `max_bytes` token ids, because each id has at least one byte of text. Call them before a
// request waits for a worker or a model.
absl::Status CheckTextBytes(const char* field, std::size_t bytes, std::size_t max_bytes);
absl::Status CheckTokenCount(std::size_t tokens, std::size_t max_bytes);
template <typename Request>
absl::Status CheckInputSize(const Request& request, std::size_t max_bytes) {
  if (request.has_token_ids())
    return CheckTokenCount(static_cast<std::size_t>(request.token_ids().ids_size()), max_bytes);
  return CheckTextBytes(InputField(request), TextBytes(request), max_bytes);
}

v1::FinishReason ToProto(serve::FinishReason reason);
// Includes at most the likeliest num_top alternatives. Sets logits_digest if the token has one.
v1::TokenLogprob ToProto(const serve::TokenLogprob& token, std::int64_t num_top, const text::TokenBytes& bytes);
// A token without a logprob, such as the first of a prompt, which no token precedes.
v1::TokenLogprob TokenWithoutLogprob(std::int32_t id, const text::TokenBytes& bytes);
v1::Usage ToProto(const serve::Usage& usage);

}  // namespace nibble::rpc
