// Ternary weights: codes -1, 0, 1 of 2 bits each (stored as code + 1) and one f32 scale per tensor,
// s = max(mean|w|, 1e-5), code = clamp(rne(w * (1 / s)), -1, 1) (docs/numerics.md 2). Ternarize a weight only once:
// doing it again to {-s, 0, s} would shrink s.
//
// Two layouts of the same codes:
// - rows, stored in artifacts: [N, ceil(K / 4)] bytes, code k of a row at bits 2 * (k % 4) of byte k / 4; the
//   rest of the last byte is 0.
// - tiles, read by products: 16 outputs by 16 k in 64 bytes; the tiles of one group of outputs follow each other along
//   k. Byte ((n / 16) * padded_k / 16 + k / 16) * 64 + (n % 16) * 4 + k % 4 holds the four codes of a block of 16 k
//   that have the same k % 4, ascending from the lowest bits. A product loads the 64 bytes once. A shift and a mask
//   then give each of four operands of a 4-way dot product: one lane per output, 4 codes per lane. The other operand is
//   4 activations, broadcast to all lanes. Elements outside [N, K] hold code 0 (byte 0x55).
#pragma once
#include <cstdint>

#include "kernels/formats/int8.h"

namespace nibble::kernels {

// BitNet b1.58 training tips, fig. 3: clamp_(min=1e-5) of mean and absmax.
inline constexpr float kTernaryMinScale = 1e-5f;
inline constexpr float kBitNetMinAbsmax = 1e-5f;
// The scale by which transformers' BitNet multiplies the codes of a weight (integrations/bitnet.py, WeightQuant): it
// divides them by 1 / s. 1 over the result is 1 / s again, so codes, masks and gradients are the same with both scales.
constexpr float ReciprocalScale(float s) { return 1.0f / (1.0f / s); }
inline constexpr std::int64_t kTernaryTileRows = 16;
inline constexpr std::int64_t kTernaryBlock = 16;  // k per tile
// kTernaryMaxColsWide keeps |acc| < 2^31 for 16-bit activations. For 8 bits that bound would allow K = 16 million;
// kTernaryMaxCols is the largest K tested.
inline constexpr std::int64_t kTernaryMaxColsWide = 65536;
inline constexpr std::int64_t kTernaryMaxCols = 262144;

constexpr std::int64_t TernaryPaddedK(std::int64_t k) { return RoundUp(k, 64); }
constexpr std::int64_t TernaryRowBytes(std::int64_t k) { return (k + 3) / 4; }
constexpr std::int64_t PackedTernaryBytes(std::int64_t n, std::int64_t k) {
  return RoundUp(n, kTernaryTileRows) * TernaryPaddedK(k) / 4;
}

// A weight [N, K] as the products read it. The scale is a vector so that q, k, v or gate and up can share one weight;
// a single tensor repeats its scale N times.
struct PackedTernaryWeight {
  const std::uint8_t* tiles = nullptr;  // [PackedTernaryBytes(N, K)]
  const float* scale = nullptr;         // [N]
  std::int64_t rows = 0;                // N
  std::int64_t cols = 0;                // K
  std::int64_t padded_k = 0;            // TernaryPaddedK(K)
};

// Position of w[n, k]'s byte in the tiles, and the shift of its code within that byte.
constexpr std::int64_t TernaryByte(std::int64_t padded_k, std::int64_t n, std::int64_t k) {
  return (n / 16 * (padded_k / 16) + k / 16) * 64 + n % 16 * 4 + k % 4;
}
constexpr int TernaryShift(std::int64_t k) { return static_cast<int>(k % 16 / 4 * 2); }
inline int TernaryCode(const PackedTernaryWeight& w, std::int64_t n, std::int64_t k) {
  return ((w.tiles[TernaryByte(w.padded_k, n, k)] >> TernaryShift(k)) & 3) - 1;
}

// The sixteen codes of a block, from a row's order to a tile's and back: a 4 x 4 matrix of 2-bit elements, transposed.
constexpr std::uint32_t TransposeTernary(std::uint32_t x) {
  std::uint32_t swap = (x ^ (x >> 6)) & 0x00cc00ccu;  // elements (0, 1) and (1, 0) of each 2 x 2
  x ^= swap ^ (swap << 6);
  swap = (x ^ (x >> 12)) & 0x0000f0f0u;  // 2 x 2 blocks (0, 1) and (1, 0)
  return x ^ swap ^ (swap << 12);
}

// codes [N, K], each -1, 0 or 1 -> rows [N, TernaryRowBytes(K)], and back. Only reorder; no rounding. Both stop and
// return false at an invalid code: another number, or in the rows a 3 or set bits past K.
[[nodiscard]] bool TernaryCodesToRows(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::uint8_t* rows);
[[nodiscard]] bool TernaryRowsToCodes(const std::uint8_t* rows, std::int64_t n, std::int64_t k, std::int8_t* codes);
// rows -> tiles [PackedTernaryBytes(N, K)], and back. The first returns false at an invalid code, as above.
[[nodiscard]] bool TernaryRowsToTiles(const std::uint8_t* rows, std::int64_t n, std::int64_t k, std::uint8_t* tiles);
void TernaryTilesToRows(const std::uint8_t* tiles, std::int64_t n, std::int64_t k, std::uint8_t* rows);

}  // namespace nibble::kernels
