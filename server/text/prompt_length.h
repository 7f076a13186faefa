// Encodes a text as a prompt. Refuses a text that is too long without encoding all of it, because an encoder takes up
// to kEncoderBytesPerByte (piece_encoder.h) times the bytes of its text.
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

// Texts up to this size are encoded at once, on any thread. Callers encode larger texts one at a time.
inline constexpr std::size_t kLargeTextBytes = 64 << 10;

struct PromptLimits {
  const char* field = "text";  // named in errors; must be a literal
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  // of the text: --max_prompt_bytes
  base::Cancelled cancelled = {};                                   // called between pieces
};

// Returns the token ids of Tokenizer::EncodeWithSpans. First checks the bytes of the text against max_bytes, and those
// of a large text also against max_tokens times the longest token. Then encodes a large text in pieces until their
// tokens exceed max_tokens. Encodes as a whole a small text, and a large text that EncodeInPieces cannot
// cut, unless the tokens of its parts, cut anywhere, clearly exceed max_tokens.
// Encoding as a whole cannot be cancelled and does not count the tokens: the caller must check that there are no more
// than max_tokens.
// Errors: InvalidArgument (PROMPT_TOO_LONG; for too many bytes with metadata "bytes" and "max_bytes", for too many
// tokens with "tokens", the number counted, and "max"), Cancelled, those of Tokenizer::EncodeWithSpans.
absl::StatusOr<std::vector<std::int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text,
                                                       bool add_special_tokens, const PromptLimits& limits);

}  // namespace nibble::text
