#include "server/text/piece_encoder.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/utf8.h"
#include "server/text/piece_cut.h"

namespace nibble::text {
namespace {

// Number of tokens on each side of a seam (where two pieces are joined) that must be equal in both pieces.
constexpr std::size_t kAgreeing = 4;
constexpr std::size_t kMaxCharacterBytes = 4;  // of UTF-8

// A part of the text, and its tokens with their positions in the whole text.
struct Piece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<TokenSpan> tokens;
};

bool IsSame(const TokenSpan& a, const TokenSpan& b) { return a.id == b.id && a.begin == b.begin && a.end == b.end; }

// Whether the kAgreeing tokens before a[i], and as many from a[i] on, equal those around b[j].
bool Agree(const std::vector<TokenSpan>& a, std::size_t i, const std::vector<TokenSpan>& b, std::size_t j) {
  if (i < kAgreeing || j < kAgreeing || i + kAgreeing > a.size() || j + kAgreeing > b.size()) return false;
  const auto around = [](const std::vector<TokenSpan>& tokens, std::size_t at) {
    return std::span(tokens).subspan(at - kAgreeing, 2 * kAgreeing);
  };
  return std::ranges::equal(around(a, i), around(b, j), IsSame);
}

// The index of the first token that begins at `at` and is not empty. Stops at the first token that begins after `at`.
std::optional<std::size_t> FindBegin(const std::vector<TokenSpan>& tokens, std::size_t at) {
  for (std::size_t i = 0; i < tokens.size() && tokens[i].begin <= at; ++i) {
    if (tokens[i].begin == at && tokens[i].end > at) return i;
  }
  return std::nullopt;
}

class PieceEncoder {
 public:
  PieceEncoder(const Tokenizer& tokenizer, std::string_view text, const PieceOptions& options)
      : tokenizer_(tokenizer),
        text_(text),
        options_(options),
        margin_(std::max(options.piece_bytes / 64, 2 * tokenizer.longest_token_bytes())) {}

  absl::StatusOr<EncodedPieces> Run(const std::function<void(std::span<const TokenSpan>)>& take) {
    // A piece must have room for the margins at its ends and for a seam between them.
    if (!tokenizer_.is_local() || 8 * margin_ > options_.piece_bytes) return EncodedPieces{};
    NIBBLE_ASSIGN_OR_RETURN(Piece piece, Encode(0, options_.piece_bytes));
    std::size_t first = 0;  // index of the first token of `piece` that `take` has not got yet
    while (piece.end < text_.size()) {
      NIBBLE_ASSIGN_OR_RETURN(Piece next, Encode(BeginAfter(piece), options_.piece_bytes));
      if (const auto seam = FindSeam(piece, next); seam.has_value()) {
        take(std::span(piece.tokens).subspan(first, seam->first - first));
        piece = std::move(next);
        first = seam->second;
        continue;
      }
      // No seam: encode twice as much from the same start instead.
      next = {};  // frees its memory first
      NIBBLE_ASSIGN_OR_RETURN(Piece wider, Encode(piece.begin, 2 * (piece.end - piece.begin)));
      if (piece.begin > 0) {
        const auto found = FindBegin(wider.tokens, piece.tokens[first].begin);
        if (!found.has_value() || !Agree(piece.tokens, first, wider.tokens, *found)) return EncodedPieces{};
        first = *found;
      }
      piece = std::move(wider);
    }
    take(std::span(piece.tokens).subspan(first));
    return EncodedPieces{.complete = true, .began_with_added = began_with_added_};
  }

 private:
  // Encodes about `bytes` from `begin` on, or more if that part has no blank to cut at (EndOf).
  absl::StatusOr<Piece> Encode(std::size_t begin, std::size_t bytes) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
    Piece piece;
    piece.begin = begin;
    piece.end = EndOf(begin, bytes);
    const std::size_t size = piece.end - begin;
    if (size > options_.piece_bytes && options_.admit) NIBBLE_RETURN_IF_ERROR(options_.admit(size));
    NIBBLE_ASSIGN_OR_RETURN(EncodedText encoded, tokenizer_.EncodeWithSpans(text_.substr(begin, size), SidesOf(piece)));
    for (TokenSpan& token : encoded.tokens) {
      if (token.end == 0) continue;  // an added token that stands for no text
      token.begin += static_cast<std::uint32_t>(begin);
      token.end += static_cast<std::uint32_t>(begin);
    }
    piece.tokens = std::move(encoded.tokens);
    if (begin == 0) began_with_added_ = encoded.began_with_added;
    return piece;
  }

  // The sides of a piece that are also sides of the whole text, and get special tokens.
  Sides SidesOf(const Piece& piece) const {
    if (!options_.add_special_tokens) return Sides::kNone;
    const bool at_begin = piece.begin == 0;
    const bool at_end = piece.end == text_.size();
    if (at_begin && at_end) return Sides::kBoth;
    if (at_begin) return Sides::kBefore;
    return at_end ? Sides::kAfter : Sides::kNone;
  }

  // The end of a piece of about `bytes`: a margin after the last edge of a run of blanks in its second half, otherwise
  // a margin after the next edge. FindSeam can join the pieces at that edge.
  std::size_t EndOf(std::size_t begin, std::size_t bytes) const {
    if (text_.size() - begin <= bytes) return text_.size();
    const std::size_t last = begin + bytes - margin_;
    for (std::size_t at = last; at > begin + bytes / 2; --at) {
      if (IsBlankEdge(text_, at)) return base::WholeCharacters(text_, at + margin_);
    }
    for (std::size_t at = last; at + margin_ < text_.size(); ++at) {
      if (IsBlankEdge(text_, at)) return base::WholeCharacters(text_, at + margin_);
    }
    return text_.size();
  }

  // The start of the next piece, three margins before the end of this one: at the start of a token, so that both pieces
  // have the same tokens from there on.
  std::size_t BeginAfter(const Piece& piece) const {
    const std::size_t wanted = piece.end - 3 * margin_;
    auto token = piece.tokens.end();
    while (token != piece.tokens.begin() && (token - 1)->begin >= wanted) --token;
    return base::WholeCharacters(text_, token != piece.tokens.end() ? token->begin : wanted);
  }

  // For each piece, the index of the first token after the seam. Both tokens begin at the same edge of a run of blanks,
  // and the tokens around them are equal. The seam is one to two margins before the end of `piece`, so the cut there
  // does not affect it. `next` begins three margins before that end, so its start does not affect the seam either.
  std::optional<std::pair<std::size_t, std::size_t>> FindSeam(const Piece& piece, const Piece& next) const {
    for (std::size_t i = piece.tokens.size(); i-- > 1;) {
      const std::size_t at = piece.tokens[i].begin;
      // EndOf may have moved the end back to a whole character.
      if (at + margin_ >= piece.end + kMaxCharacterBytes) continue;
      if (at + 2 * margin_ < piece.end) break;
      if (piece.tokens[i - 1].end > at || !IsBlankEdge(text_, at)) continue;
      const auto j = FindBegin(next.tokens, at);
      if (j.has_value() && Agree(piece.tokens, i, next.tokens, *j)) return std::pair(i, *j);
    }
    return std::nullopt;
  }

  const Tokenizer& tokenizer_;
  const std::string_view text_;
  const PieceOptions& options_;
  // Bytes at the ends of a piece whose tokens may differ from those of the whole text. Longer than a token that the end
  // cuts, and than the part that a tokenizer changes at the start of a text.
  const std::size_t margin_;
  bool began_with_added_ = false;  // of the last piece that began at 0
};

}  // namespace

absl::StatusOr<EncodedPieces> EncodeInPieces(const Tokenizer& tokenizer, std::string_view text,
                                             const PieceOptions& options,
                                             const std::function<void(std::span<const TokenSpan>)>& take) {
  return PieceEncoder(tokenizer, text, options).Run(take);
}

}  // namespace nibble::text
