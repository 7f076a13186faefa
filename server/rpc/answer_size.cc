#include "server/rpc/answer_size.h"

#include <algorithm>
#include <string>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

// Tags and numbers of protobuf at their longest: an id or a length below 2^31 has 5 bytes, a double 8.
constexpr std::size_t kTag = 1, kInt32 = 5, kDouble = 8, kDigest = 64;
constexpr std::size_t kEntry = (kTag + kInt32) + (kTag + kInt32) + (kTag + kDouble) + (kTag + kInt32);  // frame, id, logprob, token
// A piece's own tags, its first position or index, and what surrounds it.
constexpr std::size_t kPieceFrame = 64;

absl::Status TooLarge(const std::string& message, std::size_t need, std::size_t max_bytes) {
  return base::WithReason(absl::ResourceExhaustedError(message), "MESSAGE_TOO_LARGE",
                          {{"need", std::to_string(need)}, {"max", std::to_string(max_bytes)}});
}

}  // namespace

std::size_t LogprobBytes(const text::TokenBytes& tokens, std::int64_t num_top, bool digest) {
  const auto tops = static_cast<std::size_t>(num_top);
  return kEntry + tokens.BytesOfLongest(1) + (digest ? kTag + kInt32 + kDigest : 0) + tops * kEntry + tokens.BytesOfLongest(tops);
}

absl::Status CheckUnaryAnswer(std::size_t need, std::size_t max_bytes, const char* instead) {
  if (need <= max_bytes) return absl::OkStatus();
  return TooLarge(base::StrCat("the answer may have ", need, " bytes, more than the ", max_bytes, " of --max_send_bytes: use ", instead),
                  need, max_bytes);
}

absl::StatusOr<std::int64_t> TokensOfAPiece(std::size_t entry, std::size_t max_bytes) {
  const std::size_t most = std::min(kMaxPieceBytes, max_bytes);
  const std::size_t need = 2 * entry + kPieceFrame;
  if (need > most) {
    return TooLarge(base::StrCat("the logprobs of two tokens may have ", need, " bytes, more than the ", most, " of one message"), need,
                    most);
  }
  return static_cast<std::int64_t>((most - kPieceFrame) / entry) - 1;
}

std::string_view FirstPiece(std::string_view text, std::size_t max_bytes) {
  constexpr std::size_t kLongestCharacter = 4;
  const std::size_t most = std::max(std::min(kMaxPieceBytes, max_bytes), kPieceFrame + kLongestCharacter) - kPieceFrame;
  if (text.size() <= most) return text;
  std::size_t end = most;
  const auto is_inside_a_character = [&] { return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; };
  while (end > most - kLongestCharacter + 1 && is_inside_a_character()) --end;
  return text.substr(0, end);
}

}  // namespace nibble::rpc
