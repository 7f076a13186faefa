#include "server/rpc/answer_size.h"

#include <algorithm>
#include <string>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

// Largest sizes in protobuf's wire format: an id or a length below 2^31 takes 5 bytes, a double 8.
constexpr std::size_t kTag = 1, kInt32 = 5, kDouble = 8, kDigest = 64;
constexpr std::size_t kEntry =
    (kTag + kInt32) + (kTag + kInt32) + (kTag + kDouble) + (kTag + kInt32);  // frame, id, logprob, token
// Covers a piece's own tags, its first position or index, and the enclosing message.
constexpr std::size_t kPieceFrame = 64;
constexpr std::size_t kLongestCharacter = 4;

// Maximum bytes of text in one stream message.
std::size_t TextRoom(std::size_t max_bytes) {
  return std::max(std::min(kMaxPieceBytes, max_bytes), kPieceFrame + kLongestCharacter) - kPieceFrame;
}

absl::Status TooLarge(const std::string& message, std::size_t need, std::size_t max) {
  return base::WithReason(absl::ResourceExhaustedError(message), "MESSAGE_TOO_LARGE",
                          {{"need", std::to_string(need)}, {"max", std::to_string(max)}});
}

}  // namespace

std::size_t LogprobBytes(const text::TokenBytes& tokens, std::int64_t num_top, bool digest) {
  const auto tops = static_cast<std::size_t>(num_top);
  return kEntry + tokens.BytesOfLongest(1) + (digest ? kTag + kInt32 + kDigest : 0) + tops * kEntry +
         tokens.BytesOfLongest(tops);
}

absl::Status CheckUnaryAnswer(std::size_t need, std::size_t max_bytes, const char* instead) {
  if (need <= max_bytes) return absl::OkStatus();
  return TooLarge(base::StrCat("the answer may have ", need, " bytes, more than the ", max_bytes,
                               " of --max_send_bytes: use ", instead),
                  need, max_bytes);
}

absl::StatusOr<std::int64_t> TokensOfAPiece(std::size_t entry, std::size_t max_bytes) {
  const std::size_t most = std::min(kMaxPieceBytes, max_bytes);
  const std::size_t need = 2 * entry + kPieceFrame;
  if (need > most) {
    return TooLarge(
        base::StrCat("the logprobs of two tokens may have ", need, " bytes, more than the ", most, " of one message"),
        need, most);
  }
  return static_cast<std::int64_t>((most - kPieceFrame) / entry) - 1;
}

std::string_view FirstPiece(std::string_view text, std::size_t max_bytes) {
  const std::size_t room = TextRoom(max_bytes);
  if (text.size() <= room) return text;
  std::size_t end = room;
  const auto is_inside_a_character = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > room - kLongestCharacter + 1 && is_inside_a_character()) --end;
  return text.substr(0, end);
}

std::size_t MaxPieces(std::size_t text_bytes, std::size_t max_bytes) {
  const std::size_t least = TextRoom(max_bytes) - kLongestCharacter + 1;
  return (text_bytes + least - 1) / least;
}

absl::Status CheckStreamedEcho(std::size_t echo_bytes, std::size_t max_bytes, int outputs, std::size_t max_messages) {
  const std::size_t need = static_cast<std::size_t>(outputs) * (kMessagesOfAStep + MaxPieces(echo_bytes, max_bytes));
  if (need < max_messages) return absl::OkStatus();  // below the maximum: one place is for the start message
  return TooLarge(base::StrCat("the echo of ", echo_bytes, " bytes to ", outputs, " outputs may take ", need,
                               " messages, wanted fewer than the ", max_messages, " of --stream_buffer"),
                  need, max_messages);
}

}  // namespace nibble::rpc
