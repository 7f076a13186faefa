// Texts into tokens and back, by a model's tokenizer and template alone.
#pragma once
#include <cstddef>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/text_cache.h"

namespace nibble::rpc {

// Of one DetokenizeRequest: as many as the longest sequence of a job (DataConfig.max_seq_len) has.
inline constexpr int kMaxDetokenizedIds = 1 << 20;

// When the work on an answer ends early.
struct AnswerBounds {
  std::function<bool()> cancelled;  // asked at every token
  std::size_t max_bytes = 0;        // that may be sent
  std::size_t max_text_bytes = std::numeric_limits<std::size_t>::max();  // of a text that is encoded
};

// `rendered`: the result of Rendered (inference_input.h). Errors of all: Cancelled; ResourceExhausted (MESSAGE_TOO_LARGE) as soon as the answer is
// known not to fit; and those of EncodeText.
absl::Status Tokenize(const v1::TokenizeRequest& request, const std::string& rendered, const ModelText& model, const AnswerBounds& bounds,
                      v1::TokenizeResponse* response);
// InvalidArgument: a negative id, or more than kMaxDetokenizedIds.
absl::Status Detokenize(const v1::DetokenizeRequest& request, const ModelText& model, const AnswerBounds& bounds,
                        v1::DetokenizeResponse* response);
absl::Status RenderTemplate(std::string rendered, const ModelText& model, const AnswerBounds& bounds,
                            v1::RenderTemplateResponse* response);

}  // namespace nibble::rpc
