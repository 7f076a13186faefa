// Trains a tokenizer on texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct NibbleTrainer;

namespace nibble::text {

// Byte pair encoding over bytes, with GPT-2's rule for the ends of words, as the `tokenizers` library trains it. One
// thread.
class TokenizerTrainer {
 public:
  // special_tokens get the ids from 0. vocab_size: the largest number of tokens, at least 256 plus the number of
  // special tokens; texts with few different words give fewer. max_letters: limits the letters (one for each byte) of
  // all different words together, and so the memory; words that are new after this limit do not count, nor do words of
  // more than 1000 letters. Errors: InvalidArgument (vocab_size).
  static absl::StatusOr<std::unique_ptr<TokenizerTrainer>> Make(std::span<const std::string> special_tokens,
                                                                std::int64_t vocab_size, std::int64_t max_letters);
  // Peak memory in bytes of a trainer that counted words of `letters` letters.
  static std::int64_t PeakBytes(std::int64_t letters, std::int64_t vocab_size);
  TokenizerTrainer(const TokenizerTrainer&) = delete;
  TokenizerTrainer& operator=(const TokenizerTrainer&) = delete;
  ~TokenizerTrainer();

  // Counts the words of a text. Errors: InvalidArgument (not UTF-8).
  absl::Status Count(std::string_view text);
  // The text of a tokenizer.json. It depends only on the arguments of Make and on the texts. The order of the texts
  // matters only if max_letters was reached.
  absl::StatusOr<std::string> Train() const;

 private:
  explicit TokenizerTrainer(NibbleTrainer* handle) : handle_(handle) {}

  NibbleTrainer* const handle_;
};

}  // namespace nibble::text
