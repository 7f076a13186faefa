// The fast path of dequantize_ternary over any Vec: one block's word selects sixteen values from a table.
#pragma once
#include <cstring>

#include "kernels/ops/quantize/dequantize_ternary_launch.h"

namespace nibble::kernels {

template <typename Vec>
void StoreTernary(Vec v, std::int8_t* p, int n) {
  std::int8_t codes[Vec::kLanes];
  v.StoreCodes(codes);
  std::memcpy(p, codes, static_cast<std::size_t>(n));
}
template <typename Vec, typename T>
void StoreTernary(Vec v, T* p, int n) {
  n == Vec::kLanes ? v.Store(p) : v.StorePartial(p, n);
}

template <typename Vec, typename T>
void DequantizeTernaryRows(const DequantizeTernaryArgs& args, std::int64_t begin, std::int64_t end) {
  const PackedTernaryWeight& w = args.w;
  for (std::int64_t row = begin; row < end; ++row) {
    const float scale = w.scale == nullptr ? 1.0f : w.scale[row];
    // value[i] belongs to code i - 1; i = 3 never occurs. Code 0 is multiplied too, so that its result has the sign of
    // 0.0f * scale, as in the plain loops.
    const float value[4] = {-1.0f * scale, 0.0f * scale, scale, 0.0f};
    const std::uint8_t* tile = w.tiles + TernaryByte(w.padded_k, row, 0);
    T* out = args.out.Row<T>(row);
    for (std::int64_t k = 0; k < w.cols; k += kTernaryBlock, tile += 64) {
      std::uint32_t word;
      std::memcpy(&word, tile, sizeof word);
      StoreTernary(Vec::FromTernary(word, value), out + k,
                   static_cast<int>(w.cols - k < kTernaryBlock ? w.cols - k : kTernaryBlock));
    }
  }
}

template <typename Vec>
LaunchResult DequantizeTernaryVec(const DequantizeTernaryArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, kTernaryTileRows, [&](std::int64_t begin, std::int64_t end) {
    switch (args.out.dtype) {
      case DType::kI8: return DequantizeTernaryRows<Vec, std::int8_t>(args, begin, end);
      case DType::kBF16: return DequantizeTernaryRows<Vec, BF16>(args, begin, end);
      default: return DequantizeTernaryRows<Vec, float>(args, begin, end);
    }
  });
  return {};
}

}  // namespace nibble::kernels
