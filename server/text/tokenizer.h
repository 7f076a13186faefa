// Converts text to token ids and back, as a tokenizer.json specifies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/token_bytes.h"

struct NibbleTokenizer;

namespace nibble::text {

// A token and the bytes [begin, end) of the text that it stands for. Added special
// tokens stand for no bytes.
struct TokenSpan {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
};

struct EncodedText {
  std::vector<TokenSpan> tokens;
  bool began_with_added = false;  // the text began with the special token that would have been added before it
};

// The sides of a text where special tokens are added. A part of a text gets them only on the sides that it shares with
// the whole text.
enum class Sides { kNone, kBefore, kAfter, kBoth };

struct AddedToken {
  std::int32_t id;
  std::string content;
  bool special;  // omitted by Decode(..., skip_special_tokens = true)
};

// Thread-safe: immutable after FromJson.
class Tokenizer {
 public:
  // Ignores the truncation and padding settings of the file, as transformers does:
  // they are the caller's choice.
  // Errors: InvalidArgument (not a tokenizer.json, larger than 64 MiB, or needs far
  // more memory or time than real ones of its size).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);

  // A copy for large amounts of text: it caches words, and encodes text of a small vocabulary
  // in half the time. Each thread that encodes with it keeps up to 10,000 words until the thread
  // ends, even after the copy is gone, so use it only on threads that end soon.
  absl::StatusOr<std::unique_ptr<Tokenizer>> WithWordCache() const;

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // Special tokens that are spelled out in `text` become their ids.
  // add_special_tokens: also adds those that the tokenizer puts around a text, even if
  // the text already begins or ends with them, as transformers does.
  // Errors: InvalidArgument (text is not UTF-8, the vocabulary cannot express it and has no
  // unknown token, or encoding needs far more memory or time than with real tokenizers).
  absl::StatusOr<std::vector<std::int32_t>> Encode(std::string_view text, bool add_special_tokens) const;
  // Like Encode, but adds no special token that the text itself begins or ends with,
  // because models are not trained with a second BOS. Training and serving use this.
  absl::StatusOr<EncodedText> EncodeWithSpans(std::string_view text, bool add_special_tokens) const;
  absl::StatusOr<EncodedText> EncodeWithSpans(std::string_view text, Sides add_special_tokens) const;
  // Whether overlapping texts can be joined where their tokens are the same
  // (EncodeInPieces). True for byte pair encoding without dropout, unless a pre-tokenizer
  // cuts by a count or state from the start of the text; false for other models.
  bool is_local() const;

  // Bytes that are not UTF-8 become U+FFFD. An id without a token (models pad
  // their vocabulary) adds nothing. Errors: InvalidArgument (a negative id, a
  // decoder that fails, or far more memory or time than with real tokenizers).
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const;

  std::optional<std::int32_t> TokenId(std::string_view token) const;
  // The token as tokenizer.json spells it ("Ġthe"); nullopt if no token has this id.
  std::optional<std::string> Token(std::int32_t id) const;
  bool IsSpecial(std::int32_t id) const;
  // Number of tokens, including added ones.
  std::size_t vocab_size() const;
  // Ids of all tokens, ascending; there may be gaps. An id above INT32_MAX becomes INT32_MAX.
  std::vector<std::int32_t> ids() const;
  // Bytes of the longest token as tokenizer.json spells it. No token stands for more
  // bytes of a text, unless the text was normalized or the token is the unknown token.
  std::size_t longest_token_bytes() const;
  // Ascending by id.
  std::vector<AddedToken> added_tokens() const;
  // Whether the text of a list of tokens is that of its parts, joined. False for WordPiece and other decoders that
  // rewrite whole texts.
  bool decodes_by_token() const;
  // The bytes of every token. The first call computes them: up to a second for the largest vocabularies.
  const TokenBytes& token_bytes() const;

 private:
  friend class GrammarCompiler;
  friend class StreamDecoder;
  // A token, not <0xNN>, that gives text of its own. When it precedes other tokens, the
  // decoder strips its text at the start, not theirs.
  struct Anchor {
    std::int32_t id;
    std::string text;
  };

  explicit Tokenizer(NibbleTokenizer* handle) : handle_(handle) {}
  std::optional<Anchor> FindAnchor() const;
  // The TokenBytes of a token that is not an added token.
  std::string BytesOf(std::int32_t id) const;

  NibbleTokenizer* const handle_;
  std::optional<Anchor> anchor_;
  mutable std::once_flag measured_;
  mutable std::size_t longest_token_bytes_ = 0;  // after measured_
  mutable std::once_flag listed_;
  mutable TokenBytes token_bytes_;  // after listed_
};

}  // namespace nibble::text
