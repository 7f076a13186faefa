// Straight-through estimators: what the gradient of a quantiser is (docs/numerics.md 6). With c the code,
// g the gradient of c * s and u = x * (1 / s):
//   kIdentity   dx = g everywhere
//   kRoundOnly  dx = m * g with m = 1 where rne(u) is a code (so |u| < 1.5 for ternary), else 0
//   kClipped    the same with m = 1 where |u| itself is at most the largest code
// scale_grad adds the path through the scale to the last two: ds/dx * sum(g * (c - m * u)), unless the smallest scale
// held.
#pragma once
#include <cstdint>

namespace nibble::kernels {

enum class Ste : std::uint8_t { kIdentity, kRoundOnly, kClipped };

}  // namespace nibble::kernels
