// The AVX paths of double_dequantize: one template over the vectors of kernels/vec16_*.h.
#pragma once
#include <algorithm>

#include "kernels/ops/quantize/double_dequantize_launch.h"

namespace nibble::kernels {

inline constexpr std::int64_t kDoubleDequantizePieceBlocks = 32;  // a thread's range has at least this many

// Writes the n values of one block, codes[i] / factor + offset.
template <typename Vec>
void DoubleDequantizeBlock(const std::int8_t* codes, int n, float factor, float offset, float* absmax) {
  const Vec divisor = Vec::Set1(factor);
  const Vec mean = Vec::Set1(offset);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) (Vec::Load(codes + i) / divisor + mean).Store(absmax + i);
  for (; i < n; ++i) absmax[i] = static_cast<float>(codes[i]) / factor + offset;
}

template <typename Vec>
LaunchResult DoubleDequantizeVec(const DoubleDequantizeArgs& args, const Stream& stream) {
  stream.ParallelFor(
      DoubleQuantBlocks(args.n, args.block), kDoubleDequantizePieceBlocks, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
          const std::int64_t first = b * args.block;
          const int n = static_cast<int>(std::min(args.block, args.n - first));
          DoubleDequantizeBlock<Vec>(args.codes + first, n, args.factor[b], args.offset, args.absmax + first);
        }
      });
  return {};
}

}  // namespace nibble::kernels
