// Token ids one by one into text that can be shown at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

// All deltas in a row, then Tail::text, then U+FFFD if Tail::incomplete_utf8 is
// not empty, are what Tokenizer::Decode makes of all the ids. Every delta is
// whole UTF-8. An id costs the same however many came before it. One thread; the
// tokenizer must outlive it.
class StreamDecoder {
 public:
  struct Tail {
    std::string text;             // held until it was known to be the end
    std::string incomplete_utf8;  // the beginning of a character, or empty
  };

  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);

  // What `id` adds; empty while a character is not whole.
  // Errors: InvalidArgument (a negative id).
  absl::StatusOr<std::string> Append(std::int32_t id);

  // What is held until more has come, as the text that it is if nothing does: all
  // of it where the decoder looks at whole texts. Nothing changes.
  absl::StatusOr<std::string> Held();

  // Ends the text: the decoder begins again with the next Append.
  absl::StatusOr<Tail> Finish();

  // Ids that Tokenizer::Decode was given since the beginning: what it has cost.
  std::int64_t num_decoded() const { return num_decoded_; }

 private:
  using Ids = std::span<const std::int32_t>;

  absl::StatusOr<std::string> AppendBytes(std::int32_t id);
  absl::StatusOr<std::string> AppendToRun(std::int32_t id);
  absl::StatusOr<std::string> Release(std::size_t count);
  absl::StatusOr<std::string> DecodeAfter(Ids before, Ids ids);
  absl::StatusOr<std::string> InsideText(Ids ids);

  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  // The beginning of a character, from byte-level or <0xNN> tokens.
  std::string incomplete_;
  // Decoders other than byte-level strip the start of a text. Until it has shown
  // anything (begun_), pending_ is decoded after head_, the ids that were
  // stripped; from then on after the tokenizer's anchor.
  bool begun_ = false;
  std::vector<std::int32_t> head_;
  std::vector<std::int32_t> pending_;
  std::int64_t num_decoded_ = 0;
};

}  // namespace nibble::text
