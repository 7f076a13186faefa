// How many rows the trainer processes at a time. The plan of its memory uses the same numbers.
#pragma once
#include <cstdint>

namespace nibble::model {

// Rows of logits in a loss.
inline constexpr std::int64_t kLossChunk = 128;
// Rows of a bf16 weight that is multiplied in f32 (the head in an evaluation).
inline constexpr std::int64_t kWidenedRows = 4096;

}  // namespace nibble::model
