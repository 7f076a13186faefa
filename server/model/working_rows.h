// Rows that the trainer works on at a time; the plan of its memory counts with the same.
#pragma once
#include <cstdint>

namespace nibble::model {

// Of logits, in a loss.
inline constexpr std::int64_t kLossChunk = 128;
// Of a bf16 weight that is multiplied in f32: an evaluation's head.
inline constexpr std::int64_t kWidenedRows = 4096;

}  // namespace nibble::model
