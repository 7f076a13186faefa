// Encodes a text as a prompt. One that cannot be a prompt is refused before the whole of it is encoded: an encoder takes up to
// kEncoderBytesPerByte (piece_encoder.h) times the bytes of its text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

// Smaller texts are encoded at once, on any thread. Callers encode larger ones one at a time.
inline constexpr std::size_t kLargeTextBytes = 64 << 10;

struct PromptLimits {
  const char* field = "text";           // named in errors; a literal
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  // of a text that is encoded: --max_prompt_bytes
  base::Cancelled cancelled = {};  // asked between pieces
};

// The token ids of Tokenizer::EncodeWithSpans. In this order: the bytes are checked against max_bytes, and against max_tokens of the
// longest token; then a large text is encoded in pieces until their tokens exceed max_tokens. A small text is encoded at once. So is a
// large one that EncodeInPieces does not cut, unless the tokens of parts of it, cut anywhere, clearly exceed max_tokens.
// A text that is encoded at once cannot be cancelled. Its tokens are not counted here, so the caller must check that they are no more than
// max_tokens.
// Errors: InvalidArgument (PROMPT_TOO_LONG; of bytes metadata "bytes" and "max_bytes", of tokens "tokens", those that were counted, and
// "max"), Cancelled, those of Tokenizer::EncodeWithSpans.
absl::StatusOr<std::vector<std::int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                                                       const PromptLimits& limits);

}  // namespace nibble::text
