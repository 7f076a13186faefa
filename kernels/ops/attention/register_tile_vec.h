// The innermost loop of attention's products, forward and backward: a tile of sums that stays in registers.
#pragma once
#include <cstdint>

namespace nibble::kernels {

// The left factor of a product: element (row, k) at a[row * row_stride + k * k_stride].
struct TileLeft {
  const float* a;
  std::int64_t row_stride, k_stride;
};

// sums[row][column] += a[row][k] * b[k][column], one chain of multiply-adds over k < n in order, for a tile of kRows
// rows and kVectors * 16 columns. b: rows `stride` elements apart. from_zero: the chains begin at 0 instead of at
// `sums`.
template <typename Vec, int kRows, int kVectors, typename B>
inline void AddToTile(TileLeft left, const B* b, std::int64_t stride, std::int64_t n, bool from_zero, float* sums,
                      std::int64_t sums_stride) {
  Vec acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) acc[r][w] = from_zero ? Vec::Zero() : Vec::Load(sums + r * sums_stride + w * 16);
  }
  for (std::int64_t k = 0; k < n; ++k) {
    Vec columns[kVectors];
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) columns[w] = Vec::Load(b + k * stride + w * 16);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec x = Vec::Set1(left.a[r * left.row_stride + k * left.k_stride]);
#pragma GCC unroll 4
      for (int w = 0; w < kVectors; ++w) acc[r][w] = Vec::Fma(x, columns[w], acc[r][w]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) acc[r][w].Store(sums + r * sums_stride + w * 16);
  }
}

}  // namespace nibble::kernels
