// Straight-through estimators: the gradient of a quantizer (docs/numerics.md 6). With c the code, g the gradient of
// c * s and u = x * (1 / s):
//   kIdentity   dx = g everywhere
//   kRoundOnly  dx = m * g with m = 1 where rne(u) is a code (so |u| < 1.5 for ternary), else 0
//   kClipped    the same with m = 1 where |u| itself is at most the largest code
// With kRoundOnly and kClipped, scale_grad adds the path through the scale: ds/dx * sum(g * (c - m * u)), unless the
// scale was clamped to its minimum.
#pragma once
#include <cstdint>

namespace nibble::kernels {

enum class Ste : std::uint8_t { kIdentity, kRoundOnly, kClipped };

}  // namespace nibble::kernels
