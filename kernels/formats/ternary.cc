#include "kernels/formats/ternary.h"

#include <algorithm>
#include <cstring>

namespace nibble::kernels {
namespace {

constexpr std::uint32_t kZeroCodes = 0x55555555u;  // sixteen codes of 0

// Bit 2i is set where code i is 3.
constexpr std::uint32_t Threes(std::uint32_t x) { return x & (x >> 1) & kZeroCodes; }

// The codes of block b of a row of K codes; those past K are 0. Returns false at a code 3 or a bit that is set past K.
bool LoadBlock(const std::uint8_t* row, std::int64_t k, std::int64_t b, std::uint32_t* out) {
  const std::int64_t first = b * 4;
  const std::int64_t bytes = std::min<std::int64_t>(4, TernaryRowBytes(k) - first);
  std::uint32_t x = 0;
  for (std::int64_t i = 0; i < bytes; ++i) x |= std::uint32_t{row[first + i]} << (8 * i);
  const std::int64_t left = k - b * kTernaryBlock;
  if (left < kTernaryBlock) {
    const std::uint32_t mask = (std::uint32_t{1} << (2 * left)) - 1;
    if ((x & ~mask) != 0) return false;
    x |= kZeroCodes & ~mask;
  }
  *out = x;
  return Threes(x) == 0;
}

}  // namespace

bool TernaryCodesToRows(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::uint8_t* rows) {
  std::fill_n(rows, n * TernaryRowBytes(k), std::uint8_t{0});
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < k; ++i) {
      const int code = codes[r * k + i];
      if (code < -1 || code > 1) return false;
      std::uint8_t& byte = rows[r * TernaryRowBytes(k) + i / 4];
      byte = static_cast<std::uint8_t>(byte | (code + 1) << (2 * (i % 4)));
    }
  }
  return true;
}

bool TernaryRowsToCodes(const std::uint8_t* rows, std::int64_t n, std::int64_t k, std::int8_t* codes) {
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t b = 0; b * kTernaryBlock < k; ++b) {
      std::uint32_t x;
      if (!LoadBlock(rows + r * TernaryRowBytes(k), k, b, &x)) return false;
      const std::int64_t end = std::min(k, (b + 1) * kTernaryBlock);
      for (std::int64_t i = b * kTernaryBlock; i < end; ++i, x >>= 2) {
        codes[r * k + i] = static_cast<std::int8_t>(static_cast<int>(x & 3u) - 1);
      }
    }
  }
  return true;
}

bool TernaryRowsToTiles(const std::uint8_t* rows, std::int64_t n, std::int64_t k, std::uint8_t* tiles) {
  const std::int64_t padded_k = TernaryPaddedK(k);
  for (std::int64_t r = 0; r < RoundUp(n, kTernaryTileRows); ++r) {
    for (std::int64_t b = 0; b * kTernaryBlock < padded_k; ++b) {
      std::uint32_t x = kZeroCodes;
      if (r < n && b * kTernaryBlock < k && !LoadBlock(rows + r * TernaryRowBytes(k), k, b, &x)) return false;
      x = TransposeTernary(x);
      for (int j = 0; j < 4; ++j) {
        tiles[TernaryByte(padded_k, r, b * kTernaryBlock) + j] = static_cast<std::uint8_t>(x >> (8 * j));
      }
    }
  }
  return true;
}

void TernaryTilesToRows(const std::uint8_t* tiles, std::int64_t n, std::int64_t k, std::uint8_t* rows) {
  const std::int64_t padded_k = TernaryPaddedK(k);
  const std::int64_t row_bytes = TernaryRowBytes(k);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t b = 0; b * kTernaryBlock < k; ++b) {
      std::uint32_t x = 0;
      for (int j = 0; j < 4; ++j) {
        x |= std::uint32_t{tiles[TernaryByte(padded_k, r, b * kTernaryBlock) + j]} << (8 * j);
      }
      x = TransposeTernary(x);
      const std::int64_t left = k - b * kTernaryBlock;
      if (left < kTernaryBlock) x &= (std::uint32_t{1} << (2 * left)) - 1;
      for (std::int64_t i = b * 4; i < std::min(row_bytes, b * 4 + 4); ++i, x >>= 8) {
        rows[r * row_bytes + i] = static_cast<std::uint8_t>(x);
      }
    }
  }
}

}  // namespace nibble::kernels
