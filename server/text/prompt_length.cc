#include "server/text/prompt_length.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/text/piece_cut.h"

namespace nibble::text {

namespace {

// Small enough that a cancel is heard soon, and that a piece costs little where time grows faster than the text.
constexpr std::size_t kPieceBytes = 16 << 10;
// Pieces are cut at a blank where one is near their end, so that few words are cut.
constexpr std::size_t kBlankWithin = 256;
// A cut adds a few tokens at most: those of two halves for that of a word, and a prefix that a tokenizer adds to each text. Merges
// that begin elsewhere are in step again after a few tokens. A text is refused only where its pieces exceed the limit by more.
constexpr std::int64_t kTokensOfACut = 16;

absl::Status TooLong(std::string message, const std::map<std::string, std::string>& metadata) {
  return base::WithReason(absl::InvalidArgumentError(std::move(message)), "PROMPT_TOO_LONG", metadata);
}

absl::Status TooManyBytes(const PromptLimits& limits, std::size_t bytes, std::size_t max_bytes, const std::string& why) {
  return TooLong(base::StrCat(limits.field, ": has ", bytes, " bytes, ", why),
                 {{"bytes", std::to_string(bytes)}, {"max_bytes", std::to_string(max_bytes)}});
}

std::size_t PieceEnd(std::string_view text) {
  if (text.size() <= kPieceBytes) return text.size();
  for (std::size_t at = kPieceBytes; at > kPieceBytes - kBlankWithin; --at) {
    if (IsBlank(text[at])) return at;
  }
  return WholeCharacters(text, kPieceBytes);
}

}  // namespace

absl::Status CheckPromptLength(const Tokenizer& tokenizer, std::string_view text, const PromptLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return TooManyBytes(limits, text.size(), limits.max_bytes,
                        base::StrCat("wanted at most ", limits.max_bytes, " (--max_prompt_bytes)"));
  }
  constexpr auto kAnyTokens = std::numeric_limits<std::int64_t>::max();
  if (text.size() <= kLargeTextBytes || limits.max_tokens == kAnyTokens) return absl::OkStatus();
  std::int64_t most = 0;
  const std::size_t longest = std::max<std::size_t>(1, tokenizer.longest_token_bytes());
  if (__builtin_mul_overflow(limits.max_tokens, longest, &most)) return absl::OkStatus();
  if (text.size() > static_cast<std::size_t>(most)) {
    return TooManyBytes(limits, text.size(), static_cast<std::size_t>(most),
                        base::StrCat("more than ", limits.max_tokens, " tokens of at most ", longest, " bytes have"));
  }
  std::int64_t counted = 0, surplus = limits.max_tokens / 4;
  const std::size_t whole = text.size();
  while (!text.empty()) {
    if (limits.cancelled && limits.cancelled()) return absl::CancelledError("cancelled while the prompt was encoded");
    const std::size_t end = PieceEnd(text);
    if (end == 0) return absl::InvalidArgumentError(base::StrCat(limits.field, ": is not UTF-8"));
    NIBBLE_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(text.substr(0, end), /*add_special_tokens=*/false));
    text.remove_prefix(end);
    counted += static_cast<std::int64_t>(ids.size());
    surplus += kTokensOfACut;
    if (counted - surplus > limits.max_tokens) {
      return TooLong(base::StrCat(limits.field, ": has more than ", counted - surplus, " tokens in its first ", whole - text.size(),
                                  " bytes, the model takes ", limits.max_tokens),
                     {{"tokens", std::to_string(counted)}, {"max", std::to_string(limits.max_tokens)}});
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::text
