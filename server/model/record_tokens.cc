#include "server/model/record_tokens.h"

#include <algorithm>

namespace nibble::model {

namespace {

constexpr std::int64_t kMaxTokens = 96;     // maximum length of a sequence
constexpr std::int64_t kSpreadTokens = 64;  // length of the sequence of ids spread over the vocabulary
// Letters, digits, code, other scripts and emoji: activations of many kinds.
constexpr char kText[] =
    "The quick brown fox jumps over the lazy dog. In 1969, 3 astronauts flew 384400 km to the Moon.\n"
    "for (int i = 0; i < n; ++i) sum += x[i] * y[i];\n"
    "Größe, façade, naïve; Привет, мир; 你好，世界; こんにちは 🌍🚀";

}  // namespace

std::vector<std::vector<std::int32_t>> RecordTokens(const text::Tokenizer& tokenizer, std::int64_t vocab_size,
                                                    std::int64_t max_tokens) {
  const std::int64_t longest = std::clamp<std::int64_t>(max_tokens, 1, kMaxTokens);
  // Knuth's multiplicative hash (multiples of 2^32 / golden ratio) spreads the ids over the vocabulary.
  std::vector<std::int32_t> spread;
  for (std::int64_t i = 0; i < std::min(longest, kSpreadTokens); ++i) {
    spread.push_back(static_cast<std::int32_t>(i * 2654435761 % vocab_size));
  }
  std::vector<std::vector<std::int32_t>> sequences = {std::move(spread)};
  // A vocabulary without these characters cannot encode the text: then the record has only the spread ids.
  if (auto text = tokenizer.Encode(kText, /*add_special_tokens=*/true); text.ok() && !text->empty()) {
    for (const std::int32_t id : *text) {
      if (id >= vocab_size) return sequences;
    }
    text->resize(std::min(text->size(), static_cast<std::size_t>(longest)));
    sequences.push_back(*std::move(text));
  }
  return sequences;
}

}  // namespace nibble::model
