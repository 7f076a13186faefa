#include "server/text/prompt_length.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/text/piece_cut.h"
#include "server/text/piece_encoder.h"

namespace nibble::text {

namespace {

// A part ends at a blank if one is near its end, so that few words are cut.
constexpr std::size_t kBlankWithin = 256;
// Upper bound of the tokens that a cut adds: those of two halves instead of a word, and a prefix that a tokenizer adds
// to each text. A few tokens after a cut, byte pair merges give the tokens of the whole text again.
constexpr std::int64_t kTokensOfACut = 16;

absl::Status TooLong(const std::string& message, const std::map<std::string, std::string>& metadata) {
  return base::WithReason(absl::InvalidArgumentError(message), "PROMPT_TOO_LONG", metadata);
}

absl::Status TooManyBytes(const PromptLimits& limits, std::size_t bytes, std::size_t max_bytes,
                          const std::string& why) {
  return TooLong(base::StrCat(limits.field, ": has ", bytes, " bytes, ", why),
                 {{"bytes", std::to_string(bytes)}, {"max_bytes", std::to_string(max_bytes)}});
}

// `counted` tokens were counted in parts of the text, which itself has at least `least` tokens.
absl::Status TooManyTokens(const PromptLimits& limits, std::int64_t counted, std::int64_t least, std::size_t bytes) {
  return TooLong(base::StrCat(limits.field, ": has at least ", least, " tokens in its first ", bytes,
                              " bytes, the model takes ", limits.max_tokens),
                 {{"tokens", std::to_string(counted)}, {"max", std::to_string(limits.max_tokens)}});
}

absl::Status CheckBytes(const Tokenizer& tokenizer, std::string_view text, const PromptLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return TooManyBytes(limits, text.size(), limits.max_bytes,
                        base::StrCat("wanted at most ", limits.max_bytes, " (--max_prompt_bytes)"));
  }
  if (text.size() <= kLargeTextBytes) return absl::OkStatus();
  std::int64_t most = 0;
  const std::size_t longest = std::max<std::size_t>(1, tokenizer.longest_token_bytes());
  if (__builtin_mul_overflow(limits.max_tokens, longest, &most) || std::cmp_less_equal(text.size(), most))
    return absl::OkStatus();
  return TooManyBytes(limits, text.size(), static_cast<std::size_t>(most),
                      base::StrCat("more than ", limits.max_tokens, " tokens of at most ", longest, " bytes can hold"));
}

std::size_t PartEnd(std::string_view text) {
  if (text.size() <= kPieceBytes) return text.size();
  for (std::size_t at = kPieceBytes; at > kPieceBytes - kBlankWithin; --at) {
    if (IsBlank(text[at])) return at;
  }
  return base::WholeCharacters(text, kPieceBytes);
}

// For a text that EncodeInPieces cannot cut: its parts together have about as many tokens as the text, and encoding
// them takes the memory of one part. Refuses the text only if the parts have more tokens than the limit, plus
// kTokensOfACut for each part, plus a quarter of the limit: kTokensOfACut holds for byte pair merges, and this margin
// is for tokenizers that are not local (Tokenizer::is_local).
absl::Status CheckTokensOfParts(const Tokenizer& tokenizer, std::string_view text, const PromptLimits& limits) {
  if (std::cmp_less_equal(text.size(), limits.max_tokens)) return absl::OkStatus();  // even one token per byte fits
  std::int64_t counted = 0, surplus = limits.max_tokens / 4;
  const std::size_t whole = text.size();
  while (!text.empty()) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(limits.cancelled));
    const std::size_t end = PartEnd(text);
    if (end == 0) return absl::InvalidArgumentError(base::StrCat(limits.field, ": is not UTF-8"));
    NIBBLE_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(text.substr(0, end), /*add_special_tokens=*/false));
    text.remove_prefix(end);
    counted += static_cast<std::int64_t>(ids.size());
    surplus += kTokensOfACut;
    if (counted - surplus > limits.max_tokens)
      return TooManyTokens(limits, counted, counted - surplus, whole - text.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text,
                                                       bool add_special_tokens, const PromptLimits& limits) {
  NIBBLE_RETURN_IF_ERROR(CheckBytes(tokenizer, text, limits));
  std::vector<std::int32_t> ids;
  std::size_t taken_bytes = 0;  // bytes that `ids` stand for
  const auto take = [&](std::span<const TokenSpan> tokens) {
    for (const TokenSpan& token : tokens) {
      ids.push_back(token.id);
      taken_bytes = std::max<std::size_t>(taken_bytes, token.end);
    }
  };
  if (text.size() > kLargeTextBytes) {
    const auto too_many = [&] { return std::cmp_greater(ids.size(), limits.max_tokens); };
    const auto check_parts = [&, checked = false](std::size_t) mutable {
      return std::exchange(checked, true) ? absl::OkStatus() : CheckTokensOfParts(tokenizer, text, limits);
    };
    const auto pieces =
        EncodeInPieces(tokenizer, text,
                       {.add_special_tokens = add_special_tokens,
                        .cancelled = [&] { return too_many() || (limits.cancelled && limits.cancelled()); },
                        .admit = check_parts},
                       take);
    if (too_many()) {
      const auto counted = static_cast<std::int64_t>(ids.size());
      return TooManyTokens(limits, counted, counted, taken_bytes);
    }
    NIBBLE_RETURN_IF_ERROR(pieces.status());
    if (pieces->complete) return ids;
    ids.clear();
    NIBBLE_RETURN_IF_ERROR(CheckTokensOfParts(tokenizer, text, limits));
  }
  NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(limits.cancelled));
  NIBBLE_ASSIGN_OR_RETURN(const EncodedText encoded, tokenizer.EncodeWithSpans(text, add_special_tokens));
  ids.reserve(encoded.tokens.size());
  take(encoded.tokens);
  return ids;
}

}  // namespace nibble::text
