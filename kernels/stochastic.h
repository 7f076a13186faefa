// Stochastic rounding to integers with counter-based draws: the same on every machine, path and number of threads. The
// functions are in an anonymous namespace for the reason that element.h gives.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/formats/int8.h"
#include "kernels/philox.h"

namespace nibble::kernels {

namespace {

inline constexpr int kDrawsPerBlock = 8;  // of 16 bits, from the four words of one Philox call

// Random bits of the elements 8 * block to 8 * block + 7 of a stream.
inline void StochasticBits(std::uint64_t seed, std::uint64_t block, std::uint64_t stream, std::uint16_t* bits) {
  const PhiloxCounter words = PhiloxWords(seed, block, stream);
  for (int i = 0; i < kDrawsPerBlock; ++i) {
    bits[i] = static_cast<std::uint16_t>(words[static_cast<std::size_t>(i / 2)] >> (16 * (i % 2)));
  }
}

// Rounds x to one of the two nearest values of bf16, up in magnitude if its lower 16 bits plus the random bits carry
// into the upper ones. Source: torchao's _fp32_to_bf16_sr. A value of bf16 does not change; NaN stays NaN.
inline BF16 ToBF16Stochastically(float x, std::uint16_t bits) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  if ((u & 0x7f800000u) == 0x7f800000u) return ToBF16(x);  // infinite or NaN
  return BF16{static_cast<std::uint16_t>((u + bits) >> 16)};
}

// The draws of columns 8 * block to 8 * block + 7 of a row: (u + 0.5) / 2^16 of 16 random bits u, each in (0, 1).
inline void StochasticDraws(const StochasticRounding& how, std::int64_t row, std::int64_t block, float* draws) {
  std::uint16_t bits[kDrawsPerBlock];
  StochasticBits(how.seed, static_cast<std::uint64_t>(row) << 32 | static_cast<std::uint64_t>(block), how.stream, bits);
  for (int i = 0; i < kDrawsPerBlock; ++i) draws[i] = (static_cast<float>(bits[i]) + 0.5f) * 0x1p-16f;
}

// v is finite. v - floor(v) is exact, so an integer never moves.
inline float RoundStochastically(float v, float draw) {
  const float below = std::floor(v);
  return v - below > draw ? below + 1.0f : below;
}

// Rounds the element of a row and column.
inline float RoundAt(const StochasticRounding& how, std::int64_t row, std::int64_t column, float v) {
  float draws[kDrawsPerBlock];
  StochasticDraws(how, row, column / kDrawsPerBlock, draws);
  return RoundStochastically(v, draws[column % kDrawsPerBlock]);
}

// The same for the 16 elements from column k on, a multiple of 16. Vec: vec16_*.h.
template <typename Vec>
inline Vec RoundStochastically(Vec v, const StochasticRounding& how, std::int64_t row, std::int64_t k) {
  alignas(64) float draws[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes / kDrawsPerBlock; ++i) {
    StochasticDraws(how, row, k / kDrawsPerBlock + i, draws + i * kDrawsPerBlock);
  }
  const Vec nearest = Vec::Rne(v);
  const Vec one = Vec::Set1(1.0f);
  const Vec below = Vec::SelectLess(v, nearest, nearest - one, nearest);
  return Vec::SelectLess(Vec::Load(draws), v - below, below + one, below);
}

}  // namespace
}  // namespace nibble::kernels
