#include "server/rpc/tokens.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/status.h"
#include "server/text/stream_decoder.h"

namespace nibble::rpc {

namespace {

// Minimum size of a repeated string: its tag and its length.
constexpr std::size_t kLeastStringBytes = 2;

absl::Status TooLarge(const AnswerBounds& bounds) {
  return base::WithReason(absl::ResourceExhaustedError(base::StrCat("the answer has more than the ", bounds.max_bytes,
                                                                    " bytes of --max_send_bytes")),
                          "MESSAGE_TOO_LARGE");
}

absl::Status CheckBytes(std::size_t bytes, const AnswerBounds& bounds) {
  return bytes <= bounds.max_bytes ? absl::OkStatus() : TooLarge(bounds);
}

absl::Status CheckWanted(const AnswerBounds& bounds) {
  return bounds.cancelled && bounds.cancelled() ? absl::CancelledError("cancelled before the answer was complete")
                                                : absl::OkStatus();
}

text::PromptLimits LimitsOf(const AnswerBounds& bounds) {
  return {.max_bytes = bounds.max_text_bytes, .cancelled = bounds.cancelled};
}

// For a text whose tokens are sent with their ids: at most as many tokens as fit the answer. An id has at least 1 byte.
text::PromptLimits LimitsOfTokens(const AnswerBounds& bounds) {
  text::PromptLimits limits = LimitsOf(bounds);
  limits.max_tokens = static_cast<std::int64_t>(bounds.max_bytes / (1 + kLeastStringBytes));
  return limits;
}

absl::StatusOr<std::vector<std::int32_t>> TokensOf(const v1::TokenizeRequest& request, const std::string& rendered,
                                                   const registry::ModelText& model, const AnswerBounds& bounds) {
  if (request.input_case() == v1::TokenizeRequest::INPUT_NOT_SET)
    return base::FieldError("input", "is not set, wanted text or chat");
  const std::string& text = request.has_text() ? request.text() : rendered;
  const text::PromptLimits limits = LimitsOfTokens(bounds);
  auto ids = request.has_text() ? EncodeText(text, !request.has_add_special_tokens() || request.add_special_tokens(),
                                             model.assets, limits)
                                : EncodeChat(text, model.assets, limits);
  // Only the answer limits the number of tokens here, so report an excess as an answer that is too large.
  if (text.size() <= bounds.max_text_bytes && base::Reason(ids.status()) == "PROMPT_TOO_LONG") return TooLarge(bounds);
  return ids;
}

}  // namespace

absl::Status Tokenize(const v1::TokenizeRequest& request, const std::string& rendered, const registry::ModelText& model,
                      const AnswerBounds& bounds, v1::TokenizeResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, TokensOf(request, rendered, model, bounds));
  std::size_t least_bytes = 0;
  for (const std::int32_t id : ids) {
    NIBBLE_RETURN_IF_ERROR(CheckWanted(bounds));
    response->add_token_ids(id);
    response->add_tokens(ToUtf8(model.assets.tokenizer->Token(id).value_or("")));
    least_bytes += 1 + kLeastStringBytes + response->tokens().rbegin()->size();
    NIBBLE_RETURN_IF_ERROR(CheckBytes(least_bytes, bounds));
  }
  return CheckBytes(response->ByteSizeLong(), bounds);
}

absl::Status Detokenize(const v1::DetokenizeRequest& request, const registry::ModelText& model,
                        const AnswerBounds& bounds, v1::DetokenizeResponse* response) {
  if (request.token_ids_size() > kMaxDetokenizedIds) {
    return base::FieldError(
        "token_ids", base::StrCat("has ", request.token_ids_size(), " ids, wanted at most ", kMaxDetokenizedIds));
  }
  text::StreamDecoder decoder(*model.assets.tokenizer,
                              !request.has_skip_special_tokens() || request.skip_special_tokens());
  for (const std::int32_t id : request.token_ids()) {
    if (id < 0) return base::FieldError("token_ids", base::StrCat("has ", id, ", wanted 0 or more"));
    NIBBLE_RETURN_IF_ERROR(CheckWanted(bounds));
    NIBBLE_ASSIGN_OR_RETURN(const std::string piece, decoder.Append(id));
    response->mutable_text()->append(piece);
    NIBBLE_RETURN_IF_ERROR(CheckBytes(response->text().size(), bounds));
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto tail, decoder.Finish());
  response->mutable_text()->append(tail.text);
  response->set_incomplete_utf8(tail.incomplete_utf8);
  return CheckBytes(response->ByteSizeLong(), bounds);
}

absl::Status RenderTemplate(std::string rendered, const registry::ModelText& model, const AnswerBounds& bounds,
                            v1::RenderTemplateResponse* response) {
  NIBBLE_RETURN_IF_ERROR(CheckBytes(rendered.size(), bounds));
  NIBBLE_ASSIGN_OR_RETURN(const auto ids, EncodeChat(rendered, model.assets, LimitsOf(bounds)));
  response->set_text(std::move(rendered));
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  return CheckBytes(response->ByteSizeLong(), bounds);
}

absl::Status GetTokenizerConfig(const registry::ModelText& model, const AnswerBounds& bounds,
                                v1::GetTokenizerConfigResponse* response) {
  response->set_config_json(model.assets.tokenizer_config);
  response->set_chat_template(model.assets.template_source);
  response->set_num_tokens(static_cast<std::int32_t>(model.assets.tokenizer->vocab_size()));
  return CheckBytes(response->ByteSizeLong(), bounds);
}

}  // namespace nibble::rpc
