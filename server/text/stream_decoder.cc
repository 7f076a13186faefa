#include "server/text/stream_decoder.h"

#include <utility>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/text/ffi_result.h"
#include "server/text/utf8.h"

namespace nibble::text {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

absl::StatusOr<std::string> TokenBytes(const NibbleTokenizer* tokenizer,
                                       std::int32_t id) {
  FfiBytes answer;
  const NibbleTextCode code =
      nibble_tokenizer_token_bytes(tokenizer, id, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "token_id", answer));
  return std::string(answer.view());
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer,
                             bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

absl::StatusOr<std::string> StreamDecoder::Append(std::int32_t id) {
  if (id < 0) {
    return absl::InvalidArgumentError(
        base::StrCat("token_id: got ", id, ", want 0 or more"));
  }
  if (skip_special_tokens_ && tokenizer_.IsSpecial(id)) return std::string();
  switch (nibble_tokenizer_decoder_kind(tokenizer_.handle_)) {
    case NIBBLE_DECODER_BYTES:
      return AppendBytes(id);
    case NIBBLE_DECODER_RUNS:
      return AppendToRun(id);
    case NIBBLE_DECODER_WHOLE:
      break;
  }
  pending_.push_back(id);
  return std::string();
}

absl::StatusOr<std::string> StreamDecoder::AppendBytes(std::int32_t id) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string bytes,
                          TokenBytes(tokenizer_.handle_, id));
  incomplete_ += bytes;
  std::string delta;
  incomplete_.erase(0, TakeWholeCharacters(incomplete_, &delta));
  return delta;
}

absl::StatusOr<std::string> StreamDecoder::AppendToRun(std::int32_t id) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string byte,
                          TokenBytes(tokenizer_.handle_, id));
  // An id without a token does not end a run of bytes: Decode passes over it.
  if (byte.empty() && !tokenizer_.Token(id)) return std::string();
  pending_.push_back(id);
  incomplete_ += byte;
  if (byte.empty()) {
    incomplete_.clear();
  } else {
    std::string whole;
    incomplete_.erase(0, TakeWholeCharacters(incomplete_, &whole));
    if (!incomplete_.empty()) return std::string();
  }
  return Release();
}

absl::StatusOr<std::string> StreamDecoder::Release() {
  NIBBLE_ASSIGN_OR_RETURN(std::string before,
                          tokenizer_.Decode(shown_, skip_special_tokens_));
  std::vector<std::int32_t> all = shown_;
  all.insert(all.end(), pending_.begin(), pending_.end());
  NIBBLE_ASSIGN_OR_RETURN(std::string after,
                          tokenizer_.Decode(all, skip_special_tokens_));
  if (after.compare(0, before.size(), before) != 0) {
    return absl::InternalError(
        "stream decoding: a token changed the text before it");
  }
  // The shortest context that gives text: what strips the start of a text has
  // then done so.
  NIBBLE_ASSIGN_OR_RETURN(std::string alone,
                          tokenizer_.Decode(pending_, skip_special_tokens_));
  shown_ = alone.empty() ? std::move(all) : std::move(pending_);
  pending_.clear();
  return after.substr(before.size());
}

absl::StatusOr<StreamDecoder::Tail> StreamDecoder::Finish() {
  Tail tail;
  if (!pending_.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(tail.text, Release());
    if (!incomplete_.empty()) {
      // Decode shows the cut character as one U+FFFD.
      tail.text.resize(tail.text.size() - kReplacement.size());
    }
  }
  tail.incomplete_utf8 = std::exchange(incomplete_, {});
  shown_.clear();
  return tail;
}

}  // namespace nibble::text
