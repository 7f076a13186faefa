// Encodes a large text with the memory of a piece of it: an encoder takes up to kEncoderBytesPerByte of memory a byte.
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
// Memory of an encoder at its most, for each byte that it encodes at once (rust/src/tokenizer.rs).
inline constexpr std::int64_t kEncoderBytesPerByte = 256;

struct PieceOptions {
  bool add_special_tokens = false;
  std::size_t piece_bytes = kPieceBytes;
  base::Cancelled cancelled = {};  // asked before each piece
  // Called before a piece of more than piece_bytes, which a text needs where it has no blank to be cut at. An error ends the encoding.
  std::function<absl::Status(std::size_t bytes)> admit = {};
};

struct EncodedPieces {
  bool complete = false;  // false: the pieces cannot be joined; what `take` got is void, and the text has to be encoded as a whole
  bool began_with_added = false;  // EncodedText::began_with_added
};

// Gives `take` exactly the tokens of EncodeWithSpans, in order. Each piece overlaps the one before; they are joined at a blank where both
// have the same tokens with the same spans on both sides. Not complete for a tokenizer that is not local (Tokenizer::is_local) or has
// tokens that are long beside a piece. Errors: those of EncodeWithSpans and `admit`; Cancelled.
absl::StatusOr<EncodedPieces> EncodeInPieces(const Tokenizer& tokenizer, std::string_view text, const PieceOptions& options,
                                             const std::function<void(std::span<const TokenSpan>)>& take);

}  // namespace nibble::text
