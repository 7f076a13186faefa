#include "server/text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/text/ffi_result.h"

namespace nibble::text {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";
// Tokenizers strip a blank or two at the start of a text. After this many ids without
// text, the rest is held back and decoded once.
constexpr std::size_t kMaxHead = 64;

absl::StatusOr<std::string> BytesOfToken(const NibbleTokenizer* tokenizer, std::int32_t id) {
  FfiBytes answer;
  const NibbleTextCode code = nibble_tokenizer_token_bytes(tokenizer, id, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "token_id", answer));
  return std::string(answer.view());
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens, std::vector<std::int32_t> shown,
                             bool inside_text)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      shown_(std::move(shown)),
      begun_(inside_text && tokenizer.anchor_.has_value()) {}

absl::StatusOr<std::string> StreamDecoder::Append(std::int32_t id) {
  if (id < 0) {
    return absl::InvalidArgumentError(base::StrCat("token_id: got ", id, ", wanted 0 or more"));
  }
  if (skip_special_tokens_ && tokenizer_.IsSpecial(id) && std::find(shown_.begin(), shown_.end(), id) == shown_.end())
    return std::string();
  switch (nibble_tokenizer_decoder_kind(tokenizer_.handle_)) {
    case NIBBLE_DECODER_BYTES: return AppendBytes(id);
    case NIBBLE_DECODER_RUNS:
      if (tokenizer_.anchor_ && head_.size() <= kMaxHead) {
        return AppendToRun(id);
      }
      break;
    case NIBBLE_DECODER_WHOLE: break;
  }
  incomplete_.clear();
  pending_.push_back(id);
  return std::string();
}

absl::StatusOr<std::string> StreamDecoder::AppendBytes(std::int32_t id) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, BytesOfToken(tokenizer_.handle_, id));
  incomplete_ += bytes;
  std::string delta;
  incomplete_.erase(0, base::TakeWholeCharacters(incomplete_, &delta));
  return delta;
}

absl::StatusOr<std::string> StreamDecoder::AppendToRun(std::int32_t id) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string byte, BytesOfToken(tokenizer_.handle_, id));
  // An id without a token does not end a run of bytes: Decode skips it.
  if (byte.empty() && !tokenizer_.Token(id)) return std::string();
  pending_.push_back(id);
  incomplete_ += byte;
  if (byte.empty()) {
    incomplete_.clear();
  } else {
    std::string whole;
    incomplete_.erase(0, base::TakeWholeCharacters(incomplete_, &whole));
  }
  // Each byte token gives one byte: the tokens of the incomplete character stay pending.
  return Release(pending_.size() - incomplete_.size());
}

absl::StatusOr<std::string> StreamDecoder::Release(std::size_t count) {
  if (count == 0) return std::string();
  const Ids ids = Ids(pending_).first(count);
  NIBBLE_ASSIGN_OR_RETURN(std::string text, begun_ ? InsideText(ids) : DecodeAfter(head_, ids));
  if (begun_ || !text.empty()) {
    begun_ = true;
    head_.clear();
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::string stripped, InsideText(ids));
    // Keeps the first ids even if they give no text anywhere: some decoders treat the
    // first token differently, whatever it is.
    if (head_.empty() || !stripped.empty()) {
      head_.insert(head_.end(), ids.begin(), ids.end());
    }
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
  return text;
}

absl::StatusOr<std::string> StreamDecoder::DecodeAfter(Ids before, Ids ids) {
  std::vector<std::int32_t> all(before.begin(), before.end());
  all.insert(all.end(), ids.begin(), ids.end());
  num_decoded_ += static_cast<std::int64_t>(all.size());
  // Append has already dropped the special tokens to skip.
  return tokenizer_.Decode(all, /*skip_special_tokens=*/false);
}

// The text of `ids` when they do not begin a text.
absl::StatusOr<std::string> StreamDecoder::InsideText(Ids ids) {
  const Tokenizer::Anchor& anchor = *tokenizer_.anchor_;
  NIBBLE_ASSIGN_OR_RETURN(std::string text, DecodeAfter(Ids(&anchor.id, 1), ids));
  if (!text.starts_with(anchor.text)) {
    return absl::InternalError("stream decoding: a token changed the text before it");
  }
  text.erase(0, anchor.text.size());
  return text;
}

absl::StatusOr<std::string> StreamDecoder::Held() {
  if (pending_.empty()) return std::string();
  return begun_ ? InsideText(pending_) : DecodeAfter(head_, pending_);
}

absl::StatusOr<StreamDecoder::Tail> StreamDecoder::Finish() {
  Tail tail;
  if (!pending_.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(tail.text, Held());
    if (!incomplete_.empty() && tail.text.ends_with(kReplacement)) {
      // Decode shows the incomplete character as one U+FFFD.
      tail.text.resize(tail.text.size() - kReplacement.size());
    } else {
      // Also reached if the decoder strips or replaces U+FFFD.
      incomplete_.clear();
    }
  }
  tail.incomplete_utf8 = std::exchange(incomplete_, {});
  begun_ = false;
  head_.clear();
  pending_.clear();
  return tail;
}

}  // namespace nibble::text
