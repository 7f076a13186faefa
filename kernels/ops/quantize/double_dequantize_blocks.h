// The loop over blocks that the AVX paths of double_dequantize share. A Path is in an anonymous namespace, so that the
// linker cannot share an instantiation with the path of another instruction set.
#pragma once
#include <algorithm>

#include "kernels/ops/quantize/double_dequantize_launch.h"

namespace nibble::kernels {

inline constexpr std::int64_t kDoubleDequantizePieceBlocks = 32;  // a thread's range has at least this many

// Path::Block(codes, n, factor, offset, absmax) writes n values that share a factor.
template <typename Path>
LaunchResult DoubleDequantizeOn(const DoubleDequantizeArgs& args, const Stream& stream) {
  stream.ParallelFor(DoubleQuantBlocks(args.n, args.block), kDoubleDequantizePieceBlocks,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t b = begin; b < end; ++b) {
                         const std::int64_t first = b * args.block;
                         const int n = static_cast<int>(std::min(args.block, args.n - first));
                         Path::Block(args.codes + first, n, args.factor[b], args.offset, args.absmax + first);
                       }
                     });
  return {};
}

}  // namespace nibble::kernels
