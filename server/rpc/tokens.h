// Converts texts to tokens and back with a model's tokenizer and template, without its weights.
#pragma once
#include <cstddef>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/registry/text_cache.h"

namespace nibble::rpc {

// Maximum per DetokenizeRequest: the longest sequence of a job (DataConfig.max_seq_len).
inline constexpr int kMaxDetokenizedIds = 1 << 20;

// Limits of the work on an answer.
struct AnswerBounds {
  std::function<bool()> cancelled;                                       // called between parts of the work
  std::size_t max_bytes = 0;                                             // of the answer
  std::size_t max_text_bytes = std::numeric_limits<std::size_t>::max();  // of a text to encode
};

// `rendered`: the result of Rendered (inference_input.h). Errors of all functions: Cancelled; ResourceExhausted
// (MESSAGE_TOO_LARGE) as soon as the answer is known not to fit. Tokenize and RenderTemplate: also those of
// text::EncodePrompt. Tokenize: also InvalidArgument (FIELD_VIOLATION) if the request has no input.
absl::Status Tokenize(const v1::TokenizeRequest& request, const std::string& rendered, const registry::ModelText& model,
                      const AnswerBounds& bounds, v1::TokenizeResponse* response);
// Errors also: InvalidArgument: a negative id, or more than kMaxDetokenizedIds ids.
absl::Status Detokenize(const v1::DetokenizeRequest& request, const registry::ModelText& model,
                        const AnswerBounds& bounds, v1::DetokenizeResponse* response);
absl::Status RenderTemplate(std::string rendered, const registry::ModelText& model, const AnswerBounds& bounds,
                            v1::RenderTemplateResponse* response);
absl::Status GetTokenizerConfig(const registry::ModelText& model, const AnswerBounds& bounds,
                                v1::GetTokenizerConfigResponse* response);

}  // namespace nibble::rpc
