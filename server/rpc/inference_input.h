// Requests of InferenceService as the engine's; all validation.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/model/text_assets.h"
#include "server/serve/request.h"
#include "server/text/prompt_length.h"
#include "server/text/token_bytes.h"

namespace nibble::rpc {

inline constexpr std::int64_t kGenerateMaxTokens = 128;
inline constexpr std::int64_t kChatMaxTokens = 256;

// What of a GenerateRequest does not reach the engine.
struct GenerateOptions {
  serve::Request request;  // without prompt, deadline and cancel
  std::int64_t seed = 0;   // that is used; 0 for greedy
  bool logprobs = false;
  std::int64_t num_logprobs = 0;
  bool prompt_logprobs = false;
  std::int64_t num_prompt_logprobs = 0;
  bool echo = false;
  std::optional<absl::Duration> queue_timeout;
};

// Unimplemented names a field that is not built; InvalidArgument one that is out of range. The model is not looked at.
absl::StatusOr<GenerateOptions> FromProto(const v1::GenerateRequest& request, bool chat);

// The conversation by the model's template. InvalidArgument (TEMPLATE_ERROR): what it refuses names chat.messages, a model without a
// template chat_template.
absl::StatusOr<std::string> Render(const v1::ChatInput& chat, const model::TextAssets& text);

// The prompt's token ids. `text` receives the prompt as text, for echo. A text that `limits` exclude is refused before it is encoded;
// their field is ignored.
absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::GenerateRequest& request, const model::TextAssets& assets,
                                                   const text::PromptLimits& limits, std::string* text);
absl::StatusOr<std::vector<std::int32_t>> PromptOf(const v1::ScoreRequest& request, const model::TextAssets& assets,
                                                   const text::PromptLimits& limits);

// Bytes of the text to encode, before a template is applied. Request: one with a `text` and a `chat`.
template <typename Request>
std::size_t TextBytes(const Request& request) {
  if constexpr (requires { request.has_text(); }) {
    if (request.has_text()) return request.text().size();
  }
  std::size_t bytes = 0;
  if (request.has_chat()) {
    for (const v1::ChatMessage& message : request.chat().messages()) bytes += message.content().size();
  }
  return bytes;
}

// The member of `input` that was sent. Request: Generate or Score, with one of them.
template <typename Request>
const char* InputField(const Request& request) {
  return request.has_text() ? "text" : request.has_token_ids() ? "token_ids" : "chat";
}

v1::FinishReason ToProto(serve::FinishReason reason);
// With the likeliest num_top alternatives at most. logits_digest is set where the token has one.
v1::TokenLogprob ToProto(const serve::TokenLogprob& token, std::int64_t num_top, const text::TokenBytes& bytes);
// The first token of a prompt, before which nothing comes: without a logprob.
v1::TokenLogprob FirstToken(std::int32_t id, const text::TokenBytes& bytes);
v1::Usage ToProto(const serve::Usage& usage);

}  // namespace nibble::rpc
