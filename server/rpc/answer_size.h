// How many bytes an answer can have, known before the first step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/text/token_bytes.h"

namespace nibble::rpc {

// Of one message of a stream: a gRPC client that was not told otherwise takes 4 MiB.
inline constexpr std::size_t kMaxPieceBytes = std::size_t{2} << 20;

// Upper bound of the bytes that one TokenLogprob adds to a message. num_top: alternatives; digest: with a logits_digest.
std::size_t LogprobBytes(const text::TokenBytes& tokens, std::int64_t num_top, bool digest);

// ResourceExhausted (MESSAGE_TOO_LARGE; metadata need, max) where a unary answer may have `need` bytes, more than max_bytes. `instead`:
// the method that streams the same answer.
absl::Status CheckUnaryAnswer(std::size_t need, std::size_t max_bytes, const char* instead);

// Prompt tokens that one step may score so that their entries, of at most `entry` bytes each, and the one of the first token fit one
// message of kMaxPieceBytes and of max_bytes. At least 1. Errors: ResourceExhausted (MESSAGE_TOO_LARGE; metadata need, max): two do not.
absl::StatusOr<std::int64_t> TokensOfAPiece(std::size_t entry, std::size_t max_bytes);

// Longest prefix of UTF-8 `text` that fits one stream message of kMaxPieceBytes and of max_bytes. Ends between characters; holds at
// least one.
std::string_view FirstPiece(std::string_view text, std::size_t max_bytes);
// Upper bound of the pieces of a text.
std::size_t MaxPieces(std::size_t text_bytes, std::size_t max_bytes);

// Messages that one output may add to a stream before the engine asks whether the reader keeps up: a delta, text that was held back
// and a finish.
inline constexpr std::size_t kMessagesOfAStep = 3;

// ResourceExhausted (MESSAGE_TOO_LARGE; metadata need, max, in messages) where the echoes of all outputs, which are sent at once, do not
// fit the messages that a stream buffers for its reader.
absl::Status CheckStreamedEcho(std::size_t echo_bytes, std::size_t max_bytes, int outputs, std::size_t max_messages);

}  // namespace nibble::rpc
