#include "server/rpc/tokens.h"

#include <cstdint>
#include <string>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/status.h"
#include "server/text/stream_decoder.h"

namespace nibble::rpc {

namespace {

// Of a repeated string: its tag and its length.
constexpr std::size_t kLeastStringBytes = 2;

absl::Status CheckBytes(std::size_t bytes, const AnswerBounds& bounds) {
  if (bytes <= bounds.max_bytes) return absl::OkStatus();
  return base::WithReason(
      absl::ResourceExhaustedError(base::StrCat("the answer has more than the ", bounds.max_bytes, " bytes of --max_send_bytes")),
      "MESSAGE_TOO_LARGE");
}

absl::Status CheckWanted(const AnswerBounds& bounds) {
  return bounds.cancelled && bounds.cancelled() ? absl::CancelledError("cancelled before the answer was whole") : absl::OkStatus();
}

text::PromptLimits LimitsOf(const AnswerBounds& bounds) {
  return {.field = "chat", .max_bytes = bounds.max_text_bytes, .cancelled = bounds.cancelled};
}

}  // namespace

absl::Status Tokenize(const v1::TokenizeRequest& request, const ModelText& model, const AnswerBounds& bounds,
                      v1::TokenizeResponse* response) {
  v1::ScoreRequest input;  // the same inputs
  if (request.has_text()) input.set_text(request.text());
  if (request.has_chat()) *input.mutable_chat() = request.chat();
  if (request.has_add_special_tokens()) input.set_add_special_tokens(request.add_special_tokens());
  NIBBLE_ASSIGN_OR_RETURN(const auto ids, PromptOf(input, model.assets, LimitsOf(bounds)));
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

absl::Status Detokenize(const v1::DetokenizeRequest& request, const ModelText& model, const AnswerBounds& bounds,
                        v1::DetokenizeResponse* response) {
  if (request.token_ids_size() > kMaxDetokenizedIds) {
    return base::FieldError("token_ids", base::StrCat("has ", request.token_ids_size(), " ids, wanted at most ", kMaxDetokenizedIds));
  }
  text::StreamDecoder decoder(*model.assets.tokenizer, !request.has_skip_special_tokens() || request.skip_special_tokens());
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

absl::Status RenderTemplate(const v1::RenderTemplateRequest& request, const ModelText& model, const AnswerBounds& bounds,
                            v1::RenderTemplateResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(*response->mutable_text(), Render(request.chat(), model.assets));
  NIBBLE_RETURN_IF_ERROR(CheckBytes(response->text().size(), bounds));
  NIBBLE_RETURN_IF_ERROR(CheckWanted(bounds));
  NIBBLE_RETURN_IF_ERROR(text::CheckPromptLength(*model.assets.tokenizer, response->text(), LimitsOf(bounds)));
  NIBBLE_ASSIGN_OR_RETURN(const auto ids, model.assets.tokenizer->Encode(response->text(), /*add_special_tokens=*/false));
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  return CheckBytes(response->ByteSizeLong(), bounds);
}

}  // namespace nibble::rpc
