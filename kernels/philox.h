// Philox4x32-10: a counter-based generator, so that any draw can be reproduced from its seed and index alone.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once
#include <array>
#include <cstdint>

namespace nibble::kernels {
namespace {  // for the reason that element.h gives

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;  // the golden ratio and sqrt(3) - 1, as in the paper
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Four words for draw `index` of stream `stream` under a seed.
constexpr PhiloxCounter PhiloxWords(std::uint64_t seed, std::uint64_t index, std::uint64_t stream = 0) {
  return Philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                     static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// A multiple of 2^-53 in [0, 1), made from the first two words.
constexpr double PhiloxUniform(std::uint64_t seed, std::uint64_t index, std::uint64_t stream = 0) {
  const PhiloxCounter w = PhiloxWords(seed, index, stream);
  return static_cast<double>((std::uint64_t{w[0]} << 32 | w[1]) >> 11) * 0x1p-53;
}

}  // namespace
}  // namespace nibble::kernels
