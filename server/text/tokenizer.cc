#include "server/text/tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "server/base/status_macros.h"
#include "server/text/ffi_result.h"

namespace nibble::text {
namespace {

// Maximum number of tokens tried as an anchor. A vocabulary begins with its special tokens,
// which give text, so one of the first tokens is usually found.
constexpr std::size_t kMaxAnchorsTried = 4096;

// Adds special tokens on these sides, except those that the text itself begins or ends with.
NibbleSpecialTokens OnceOn(Sides sides) {
  switch (sides) {
    case Sides::kNone: return NIBBLE_SPECIAL_NONE;
    case Sides::kBefore: return NIBBLE_SPECIAL_ONCE_BEFORE;
    case Sides::kAfter: return NIBBLE_SPECIAL_ONCE_AFTER;
    case Sides::kBoth: return NIBBLE_SPECIAL_ONCE;
  }
  return NIBBLE_SPECIAL_NONE;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json) {
  NibbleTokenizer* handle = nullptr;
  FfiBytes answer;
  const NibbleTextCode code = nibble_tokenizer_load(FfiData(json), json.size(), &handle, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "tokenizer.json", answer));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(handle));
  tokenizer->anchor_ = tokenizer->FindAnchor();
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::WithWordCache() const {
  NibbleTokenizer* handle = nullptr;
  FfiBytes answer;
  const NibbleTextCode code = nibble_tokenizer_with_word_cache(handle_, &handle, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "tokenizer.json", answer));
  std::unique_ptr<Tokenizer> copy(new Tokenizer(handle));
  copy->anchor_ = anchor_;
  return copy;
}

std::optional<Tokenizer::Anchor> Tokenizer::FindAnchor() const {
  if (nibble_tokenizer_decoder_kind(handle_) != NIBBLE_DECODER_RUNS) {
    return std::nullopt;
  }
  const auto end = static_cast<std::int32_t>(std::min(vocab_size(), kMaxAnchorsTried));
  for (std::int32_t id = 0; id < end; ++id) {
    FfiBytes byte;
    if (nibble_tokenizer_token_bytes(handle_, id, byte.out()) != NIBBLE_TEXT_OK || !byte.view().empty()) {
      continue;
    }
    auto text = Decode(std::span(&id, 1), /*skip_special_tokens=*/false);
    if (text.ok() && !text->empty()) return Anchor{id, *std::move(text)};
  }
  return std::nullopt;
}

Tokenizer::~Tokenizer() { nibble_tokenizer_free(handle_); }

absl::StatusOr<std::vector<std::int32_t>> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  FfiBytes answer;
  const NibbleTextCode code = nibble_tokenizer_encode(handle_, FfiData(text), text.size(),
                                                      add_special_tokens ? NIBBLE_SPECIAL_ALL : NIBBLE_SPECIAL_NONE,
                                                      nullptr, nullptr, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "text", answer));
  return CopyAs<std::int32_t>(answer.view());
}

absl::StatusOr<EncodedText> Tokenizer::EncodeWithSpans(std::string_view text, bool add_special_tokens) const {
  return EncodeWithSpans(text, add_special_tokens ? Sides::kBoth : Sides::kNone);
}

bool Tokenizer::is_local() const { return nibble_tokenizer_is_local(handle_); }

absl::StatusOr<EncodedText> Tokenizer::EncodeWithSpans(std::string_view text, Sides add_special_tokens) const {
  FfiBytes answer;
  FfiBytes offsets;
  EncodedText encoded;
  const NibbleTextCode code = nibble_tokenizer_encode(handle_, FfiData(text), text.size(), OnceOn(add_special_tokens),
                                                      offsets.out(), &encoded.began_with_added, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "text", answer));
  const auto ids = CopyAs<std::int32_t>(answer.view());
  const auto places = CopyAs<std::uint32_t>(offsets.view());
  encoded.tokens.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    encoded.tokens.push_back({ids[i], places[2 * i], places[2 * i + 1]});
  }
  return encoded;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  FfiBytes answer;
  const NibbleTextCode code =
      nibble_tokenizer_decode(handle_, ids.data(), ids.size(), skip_special_tokens, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "token_ids", answer));
  return std::string(answer.view());
}

std::optional<std::int32_t> Tokenizer::TokenId(std::string_view token) const {
  const std::int64_t id = nibble_tokenizer_token_id(handle_, FfiData(token), token.size());
  if (id < 0 || id > INT32_MAX) return std::nullopt;
  return static_cast<std::int32_t>(id);
}

std::optional<std::string> Tokenizer::Token(std::int32_t id) const {
  FfiBytes answer;
  if (nibble_tokenizer_token(handle_, id, answer.out()) != NIBBLE_TEXT_OK) {
    return std::nullopt;
  }
  return std::string(answer.view());
}

bool Tokenizer::IsSpecial(std::int32_t id) const { return nibble_tokenizer_is_special(handle_, id); }

std::size_t Tokenizer::vocab_size() const { return nibble_tokenizer_vocab_size(handle_); }

std::size_t Tokenizer::longest_token_bytes() const {
  std::call_once(measured_, [this] {
    for (const AddedToken& token : added_tokens()) {
      longest_token_bytes_ = std::max(longest_token_bytes_, token.content.size());
    }
    for (const std::int32_t id : ids()) {
      longest_token_bytes_ = std::max(longest_token_bytes_, Token(id).value_or("").size());
    }
  });
  return longest_token_bytes_;
}

std::vector<std::int32_t> Tokenizer::ids() const {
  FfiBytes answer;
  if (nibble_tokenizer_ids(handle_, answer.out()) != NIBBLE_TEXT_OK) return {};
  return CopyAs<std::int32_t>(answer.view());
}

std::string Tokenizer::BytesOf(std::int32_t id) const {
  FfiBytes bytes;
  const bool read = nibble_tokenizer_token_bytes(handle_, id, bytes.out()) == NIBBLE_TEXT_OK;
  const bool byte_level = nibble_tokenizer_decoder_kind(handle_) == NIBBLE_DECODER_BYTES;
  if (read && (byte_level || !bytes.view().empty())) return std::string(bytes.view());
  // Decode after the anchor: alone, the token could lose a leading blank.
  if (anchor_) {
    const std::int32_t ids[] = {anchor_->id, id};
    const auto text = Decode(ids, /*skip_special_tokens=*/false);
    if (text.ok() && text->starts_with(anchor_->text)) return text->substr(anchor_->text.size());
  }
  return Decode(std::span(&id, 1), /*skip_special_tokens=*/false).value_or("");
}

bool Tokenizer::decodes_by_token() const { return nibble_tokenizer_decoder_kind(handle_) != NIBBLE_DECODER_WHOLE; }

const TokenBytes& Tokenizer::token_bytes() const {
  std::call_once(listed_, [this] {
    std::map<std::int32_t, std::string> added;
    for (AddedToken& token : added_tokens()) added[token.id] = std::move(token.content);
    for (const std::int32_t id : ids()) {
      const auto found = added.find(id);
      token_bytes_.Add(id, found != added.end() ? found->second : BytesOf(id));
    }
  });
  return token_bytes_;
}

std::vector<AddedToken> Tokenizer::added_tokens() const {
  FfiBytes answer;
  std::vector<AddedToken> tokens;
  if (nibble_tokenizer_added_tokens(handle_, answer.out()) != NIBBLE_TEXT_OK) {
    return tokens;
  }
  for (const std::int32_t id : CopyAs<std::int32_t>(answer.view())) {
    tokens.push_back({id, Token(id).value_or(""), IsSpecial(id)});
  }
  return tokens;
}

}  // namespace nibble::text
