// The fast path of ternarize over any Vec: one pass for the mean, one for the codes.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/ops/quantize/ternarize_launch.h"

namespace nibble::kernels {

// Sum of row_sum(row): over 16 lanes (lane l takes rows l, l + 16, ...) and a fixed tree. Rows are split over threads.
template <typename Vec, typename RowSum>
inline double SumOverRows(std::int64_t rows, std::int64_t cols, const Stream& stream, RowSum row_sum) {
  std::vector<double> sums(static_cast<std::size_t>(rows));
  stream.ParallelFor(rows, RowGrain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) sums[static_cast<std::size_t>(row)] = row_sum(row);
  });
  double lanes[Vec::kLanes] = {};
  for (std::size_t row = 0; row < sums.size(); ++row) lanes[row % Vec::kLanes] += sums[row];
  for (int half = Vec::kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// Packs the sixteen codes of a block, k ascending, into the block's word of a tile (formats/ternary.h).
template <typename Vec>
inline std::uint32_t TernaryWord(Vec codes) {
  std::int8_t bytes[Vec::kLanes];
  codes.StoreCodes(bytes);
  std::uint32_t plane[4];
  std::memcpy(plane, bytes, sizeof plane);
  std::uint32_t word = 0;
  for (int p = 0; p < 4; ++p) word |= (plane[p] & 0x03030303u) << (2 * p);  // -1 is 3 in two bits
  // 3, 0, 1 -> 0, 1, 2 in each pair of bits: add one without a carry.
  const std::uint32_t low = word & 0x55555555u;
  return (low ^ 0x55555555u) | ((word ^ (low << 1)) & 0xaaaaaaaau);
}

template <typename Vec, typename T>
void TernarizeRows(const TernarizeArgs& args, float inverse, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = args.w.cols;
  const std::int64_t padded_k = TernaryPaddedK(cols);
  const std::int64_t row_bytes = TernaryRowBytes(cols);
  const Vec scale = Vec::Set1(inverse);
  for (std::int64_t row = begin; row < end; ++row) {
    std::uint8_t* tile = args.tiles == nullptr ? nullptr : args.tiles + TernaryByte(padded_k, row, 0);
    std::uint8_t* bytes = args.rows == nullptr ? nullptr : args.rows + row * row_bytes;
    const bool is_padding = row >= args.w.rows;  // fills the last tile
    for (std::int64_t k = 0; k < padded_k; k += kTernaryBlock, tile += tile == nullptr ? 0 : 64) {
      std::uint32_t word = 0x55555555u;
      if (!is_padding && k < cols) {
        const T* p = args.w.Row<T>(row) + k;
        const Vec w = k + Vec::kLanes <= cols ? Vec::Load(p) : Vec::LoadPartial(p, static_cast<int>(cols - k));
        word = TernaryWord(Vec::Max(Vec::Min(Vec::Rne(w * scale), Vec::Set1(1.0f)), Vec::Set1(-1.0f)));
        if (bytes != nullptr) {
          std::uint32_t in_order = TransposeTernary(word);
          if (cols - k < kTernaryBlock) in_order &= (std::uint32_t{1} << (2 * (cols - k))) - 1;
          std::memcpy(bytes + k / 4, &in_order, static_cast<std::size_t>(std::min<std::int64_t>(4, row_bytes - k / 4)));
        }
      }
      if (tile != nullptr) std::memcpy(tile, &word, sizeof word);
    }
  }
}

template <typename Vec, typename T>
void TernarizeType(const TernarizeArgs& args, const Stream& stream) {
  const ConstMatrix& w = args.w;
  const double total = SumOverRows<Vec>(w.rows, w.cols, stream, [&](std::int64_t row) {
    typename Vec::Sum64 sum;
    ForEachVector<Vec>(RowSource<Vec, T>{w.Row<T>(row)}, w.cols, [&](std::int64_t, Vec x) { sum.Add(Vec::Abs(x)); });
    return sum.Reduce();
  });
  const float mean = static_cast<float>(total / (static_cast<double>(w.rows) * static_cast<double>(w.cols)));
  const float scale = mean < kTernaryMinScale ? kTernaryMinScale : mean;  // keeps NaN
  std::fill_n(args.scale, w.rows, scale);
  const std::int64_t rows = args.tiles == nullptr ? w.rows : RoundUp(w.rows, kTernaryTileRows);
  stream.ParallelFor(rows, RoundUp(RowGrain(w.cols), kTernaryTileRows), [&](std::int64_t begin, std::int64_t end) {
    TernarizeRows<Vec, T>(args, 1.0f / scale, begin, end);
  });
}

template <typename Vec>
LaunchResult TernarizeVec(const TernarizeArgs& args, const Stream& stream) {
  args.w.dtype == DType::kF32 ? TernarizeType<Vec, float>(args, stream) : TernarizeType<Vec, BF16>(args, stream);
  return {};
}

}  // namespace nibble::kernels
