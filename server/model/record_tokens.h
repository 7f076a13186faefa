#pragma once
#include <cstdint>
#include <vector>

#include "server/text/tokenizer.h"

namespace nibble::model {

// Sequences from which a model's record is made: ids spread over the vocabulary, and a fixed text in many scripts if
// the tokenizer can encode it. Each sequence has at most `max_tokens` tokens, and at most 96.
std::vector<std::vector<std::int32_t>> RecordTokens(const text::Tokenizer& tokenizer, std::int64_t vocab_size,
                                                    std::int64_t max_tokens);

}  // namespace nibble::model
