// Sets of tokens as bits, for GrammarFollower::AllowedTokens() and kernels::SampleArgs::allowed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::support {

// The tokens whose bits are set, in ascending order.
inline std::vector<std::int32_t> TokensOf(std::span<const std::uint32_t> words) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < 32 * words.size(); ++i) {
    if ((words[i / 32] >> (i % 32) & 1) != 0) tokens.push_back(static_cast<std::int32_t>(i));
  }
  return tokens;
}

}  // namespace nibble::support
