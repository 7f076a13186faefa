// Upper bounds of an answer's size, computed before the first step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/text/token_bytes.h"

namespace nibble::rpc {

// Maximum size of one stream message: half of the 4 MiB that a gRPC client accepts by default.
inline constexpr std::size_t kMaxPieceBytes = std::size_t{2} << 20;

// Upper bound of the bytes that one TokenLogprob adds to a message. num_top: alternatives; digest: with a
// logits_digest.
std::size_t LogprobBytes(const text::TokenBytes& tokens, std::int64_t num_top, bool digest);

// `need`: upper bound of a unary answer's bytes. `instead`: name of the method that streams the same answer.
// Errors: ResourceExhausted (MESSAGE_TOO_LARGE; metadata need, max): `need` exceeds max_bytes.
absl::Status CheckUnaryAnswer(std::size_t need, std::size_t max_bytes, const char* instead);

// Maximum number of prompt tokens that one step may score, at least 1: their entries of at most `entry` bytes each, and
// the entry of the first token, fit one message of kMaxPieceBytes and of max_bytes. Errors: ResourceExhausted
// (MESSAGE_TOO_LARGE; metadata need, max): two entries do not fit.
absl::StatusOr<std::int64_t> TokensOfAPiece(std::size_t entry, std::size_t max_bytes);

// Longest prefix of UTF-8 `text` that fits one stream message of kMaxPieceBytes and of max_bytes. It ends between
// characters and holds at least one.
std::string_view FirstPiece(std::string_view text, std::size_t max_bytes);
// Upper bound of the pieces of a text.
std::size_t MaxPieces(std::size_t text_bytes, std::size_t max_bytes);

// Messages that one output may add to a stream between two of the engine's checks for a slow reader: a delta, text that
// was held back, and a finish.
inline constexpr std::size_t kMessagesOfAStep = 3;

// The echoes of all outputs are sent at once, so the stream's buffer must hold them. Errors: ResourceExhausted
// (MESSAGE_TOO_LARGE; metadata need, max, in messages): it does not.
absl::Status CheckStreamedEcho(std::size_t echo_bytes, std::size_t max_bytes, int outputs, std::size_t max_messages);

}  // namespace nibble::rpc
