// Refuses a text that cannot be a prompt before the whole of it is encoded: an encoder takes about 200 times the bytes of its text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "server/base/cancelled.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

// Smaller texts are encoded at once. Larger ones are encoded one at a time, after CheckPromptLength.
inline constexpr std::size_t kLargeTextBytes = 64 << 10;

struct PromptLimits {
  const char* field = "text";           // named in errors; a literal
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  // of a text that is encoded: --max_prompt_bytes
  base::Cancelled cancelled = {};  // asked between pieces
};

// OK where the text has to be encoded as a whole to know whether it fits; never an error for one that does, unless its tokenizer drops
// most of what it reads. In this order: the bytes against max_bytes, and against max_tokens of the longest token; then the tokens of
// its pieces, until they are clearly too many. At most one piece is held at a time.
// Errors: InvalidArgument (PROMPT_TOO_LONG; of bytes metadata "bytes" and "max_bytes", of tokens "tokens", those that were counted, and
// "max"), Cancelled, those of Tokenizer::Encode.
absl::Status CheckPromptLength(const Tokenizer& tokenizer, std::string_view text, const PromptLimits& limits);

}  // namespace nibble::text
