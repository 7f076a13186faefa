// The loop over blocks that the AVX paths of double_quantize share. Each instruction set passes a Path type of its own
// (DoubleQuantizeBlocks<Vec>), so that the linker cannot share an instantiation with the path of another set.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/ops/quantize/double_quantize_launch.h"

namespace nibble::kernels {

inline constexpr std::int64_t kDoubleQuantizePieceBlocks = 16;  // a thread's range has at least this many

static inline float DoubleQuantFactor(float max_abs) {
  const float factor = 128.0f / max_abs;
  return factor <= std::numeric_limits<float>::max() ? factor : 1.0f;
}

// Path::MaxAbs(absmax, n, offset) is max|absmax - offset|; Path::Codes writes n codes.
template <typename Path>
LaunchResult DoubleQuantizeOn(const DoubleQuantizeArgs& args, const Stream& stream) {
  double sum = 0;  // one chain, in order: the same mean for every path and thread count
  for (std::int64_t i = 0; i < args.n; ++i) sum += static_cast<double>(args.absmax[i]);
  const float offset = args.n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(args.n));
  *args.offset = offset;
  stream.ParallelFor(DoubleQuantBlocks(args.n, args.block), kDoubleQuantizePieceBlocks,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t b = begin; b < end; ++b) {
                         const std::int64_t first = b * args.block;
                         const int n = static_cast<int>(std::min(args.block, args.n - first));
                         args.factor[b] = DoubleQuantFactor(Path::MaxAbs(args.absmax + first, n, offset));
                         Path::Codes(args.absmax + first, n, offset, args.factor[b], args.codes + first);
                       }
                     });
  return {};
}

}  // namespace nibble::kernels
