// Text to token ids and back, by a tokenizer.json that is obeyed as it is written.
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

// A token and the bytes [begin, end) of the text that it stands for; special
// tokens that were added stand for none.
struct TokenSpan {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
};

struct EncodedText {
  std::vector<TokenSpan> tokens;
  bool began_with_added = false;  // with the special token that would have been put before it
};

// On which sides of a text special tokens are added. A part of a text has them where the whole has them.
enum class Sides { kNone, kBefore, kAfter, kBoth };

struct AddedToken {
  std::int32_t id;
  std::string content;
  bool special;  // left out by Decode(..., skip_special_tokens = true)
};

// Thread-safe: nothing changes after FromJson.
class Tokenizer {
 public:
  // Truncation and padding that the file asks for are left out, as transformers
  // does: they belong to the caller.
  // Errors: InvalidArgument (not a tokenizer.json, more than 64 MiB, or one that
  // needs far more memory than its size).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      std::string_view json);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // Special tokens that are spelled out in `text` become their ids.
  // add_special_tokens: also those that the tokenizer itself puts around a text,
  // whatever the text begins and ends with, as transformers does.
  // Errors: InvalidArgument (text is not UTF-8, or not expressible in the
  // vocabulary where that has no unknown token).
  absl::StatusOr<std::vector<std::int32_t>> Encode(
      std::string_view text, bool add_special_tokens) const;
  // As Encode, but adds no special token that the text itself begins or ends with:
  // models are not trained with a second BOS. Training and serving use this.
  absl::StatusOr<EncodedText> EncodeWithSpans(std::string_view text,
                                              bool add_special_tokens) const;
  absl::StatusOr<EncodedText> EncodeWithSpans(std::string_view text,
                                              Sides add_special_tokens) const;
  // Whether texts that overlap can be joined where their tokens are the same
  // (EncodeInPieces): byte pair encoding, not for example a unigram model.
  bool is_local() const;

  // Bytes that are no UTF-8 become U+FFFD. An id without a token (models pad
  // their vocabulary) adds nothing. Errors: InvalidArgument (a negative id).
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids,
                                     bool skip_special_tokens) const;

  std::optional<std::int32_t> TokenId(std::string_view token) const;
  // The token as tokenizer.json spells it ("Ġthe"), or none with this id.
  std::optional<std::string> Token(std::int32_t id) const;
  bool IsSpecial(std::int32_t id) const;
  // How many tokens there are, added ones included.
  std::size_t vocab_size() const;
  // Of all tokens, ascending; they may have gaps. An id above INT32_MAX is given as INT32_MAX.
  std::vector<std::int32_t> ids() const;
  // Bytes of the longest token as tokenizer.json spells it: no token stands for more
  // bytes of a text, unless it was normalized or is the unknown token.
  std::size_t longest_token_bytes() const;
  // Ascending by id.
  std::vector<AddedToken> added_tokens() const;
  // The bytes of every token, computed by the first call: up to a second for the largest vocabularies.
  const TokenBytes& token_bytes() const;

 private:
  friend class StreamDecoder;
  // A token, no <0xNN>, that is a text of its own: in front of others it has used
  // up what is stripped at the start of a text.
  struct Anchor {
    std::int32_t id;
    std::string text;
  };

  explicit Tokenizer(NibbleTokenizer* handle) : handle_(handle) {}
  std::optional<Anchor> FindAnchor() const;
  // TokenBytes, of a token that was not added.
  std::string BytesOf(std::int32_t id) const;

  NibbleTokenizer* const handle_;
  std::optional<Anchor> anchor_;
  mutable std::once_flag measured_;
  mutable std::size_t longest_token_bytes_ = 0;  // after measured_
  mutable std::once_flag listed_;
  mutable TokenBytes token_bytes_;  // after listed_
};

}  // namespace nibble::text
