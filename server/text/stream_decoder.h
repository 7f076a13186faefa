// Decodes token ids one by one into text that can be shown at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

// All deltas, then Tail::text, then U+FFFD if Tail::incomplete_utf8 is not empty,
// together equal the result of Tokenizer::Decode for all ids. Every delta is valid
// UTF-8. The cost of an id does not depend on the number of ids before it. One
// thread; the tokenizer must outlive it.
class StreamDecoder {
 public:
  struct Tail {
    std::string text;             // text that was held back until the end
    std::string incomplete_utf8;  // the beginning of a character, or empty
  };

  // `shown`: special tokens that are not skipped; then the deltas are those of Decode without the others.
  // inside_text: the ids continue a text, so a blank at their start is not stripped as at the start of a text.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens, std::vector<std::int32_t> shown = {},
                bool inside_text = false);

  // Returns the text that `id` adds; empty while a character is incomplete.
  // Errors: InvalidArgument (a negative id).
  absl::StatusOr<std::string> Append(std::int32_t id);

  // Returns the text that is held back until more ids come, as it would be if none
  // came: the whole text if the decoder needs whole texts. Does not affect later calls.
  absl::StatusOr<std::string> Held();

  // Ends the text; the next Append begins a new one.
  absl::StatusOr<Tail> Finish();

  // Number of ids passed to Tokenizer::Decode so far: a measure of the cost.
  std::int64_t num_decoded() const { return num_decoded_; }

 private:
  using Ids = std::span<const std::int32_t>;

  absl::StatusOr<std::string> AppendBytes(std::int32_t id);
  absl::StatusOr<std::string> AppendToRun(std::int32_t id);
  // Returns the text of the first `count` ids of pending_, and removes these ids.
  absl::StatusOr<std::string> Release(std::size_t count);
  // Returns the text of `before` and `ids` together.
  absl::StatusOr<std::string> DecodeAfter(Ids before, Ids ids);
  absl::StatusOr<std::string> InsideText(Ids ids);

  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  const std::vector<std::int32_t> shown_;
  // The beginning of a character, from byte-level or <0xNN> tokens.
  std::string incomplete_;
  // Decoders other than byte-level strip the start of a text. Until some text has been
  // returned (begun_), pending_ is decoded after head_, the stripped ids; from then on,
  // after the tokenizer's anchor.
  bool begun_ = false;
  std::vector<std::int32_t> head_;
  std::vector<std::int32_t> pending_;
  std::int64_t num_decoded_ = 0;
};

}  // namespace nibble::text
