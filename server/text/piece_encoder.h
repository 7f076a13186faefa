// Encodes a large text with the memory that one piece needs: an encoder takes up to kEncoderBytesPerByte bytes of
// memory per byte of text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

inline constexpr std::size_t kPieceBytes = 32 << 10;
// Maximum memory of an encoder, in bytes per byte that it encodes at once, besides 64 MiB (rust/src/tokenizer.rs).
inline constexpr std::int64_t kEncoderBytesPerByte = 256;

struct PieceOptions {
  bool add_special_tokens = false;
  std::size_t piece_bytes = kPieceBytes;
  base::Cancelled cancelled = {};  // called before each piece
  // Called before a piece of more than piece_bytes, which is needed where the text has no blank to cut at, or where the
  // tokens of two pieces differ. An error ends the encoding.
  std::function<absl::Status(std::size_t bytes)> admit = {};
};

struct EncodedPieces {
  // False: the pieces cannot be joined; discard the tokens passed to `take` and encode the whole text.
  bool complete = false;
  bool began_with_added = false;  // EncodedText::began_with_added
};

// Passes exactly the tokens of EncodeWithSpans to `take`, in order. Each piece overlaps the one before; the two are
// joined at a blank where both have the same tokens with the same spans on both sides. Not complete if the tokenizer is
// not local (Tokenizer::is_local) or has tokens that are long relative to a piece, or if a larger piece gives other
// tokens where those of the smaller one were passed on. Errors: those of EncodeWithSpans and `admit`; Cancelled.
absl::StatusOr<EncodedPieces> EncodeInPieces(const Tokenizer& tokenizer, std::string_view text,
                                             const PieceOptions& options,
                                             const std::function<void(std::span<const TokenSpan>)>& take);

}  // namespace nibble::text
