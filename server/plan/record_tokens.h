#pragma once
#include <cstdint>
#include <vector>

#include "server/text/tokenizer.h"

namespace nibble::plan {

// What a model is asked when its record is made: ids spread over the vocabulary, and a fixed text of many scripts where the
// tokenizer knows it. Each sequence has at most `max_tokens`.
std::vector<std::vector<std::int32_t>> RecordTokens(const text::Tokenizer& tokenizer, std::int64_t vocab_size,
                                                    std::int64_t max_tokens);

}  // namespace nibble::plan
