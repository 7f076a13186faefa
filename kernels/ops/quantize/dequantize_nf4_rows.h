// The loop over rows and blocks that the AVX paths of dequantize_nf4 share. A Path is in an anonymous namespace, so
// that the linker cannot share an instantiation with the path of another instruction set.
#pragma once
#include <algorithm>

#include "kernels/ops/quantize/dequantize_nf4_launch.h"

namespace nibble::kernels {

// About 16k elements per piece: for fewer, a second thread costs more than it saves.
inline constexpr std::int64_t kDequantizeNf4PieceElements = 16384;

// A Path works on units of 32 elements, which are 16 bytes of codes:
//   Values(absmax, T{})           the sixteen values of a block, rounded to T, in a form of the path's own
//   Unit(codes, values, T* out)   writes one unit
template <typename Path, typename T>
void DequantizeNf4Rows(const DequantizeNf4Args& args, const Stream& stream) {
  constexpr std::int64_t kUnit = kNf4SmallestBlock;
  const std::int64_t k = args.w.cols;
  const std::int64_t block = args.w.block;
  stream.ParallelFor(args.w.rows, std::max<std::int64_t>(1, kDequantizeNf4PieceElements / k),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t r = begin; r < end; ++r) {
                         const std::uint8_t* codes = args.w.codes + r * Nf4RowBytes(k);
                         const float* absmax = args.w.absmax + r * Nf4RowBlocks(k, block);
                         T* out = args.out.Row<T>(r);
                         for (std::int64_t first = 0; first < k; first += block) {
                           const auto values = Path::Values(*absmax++, T{});
                           const std::int64_t last = std::min(first + block, k);
                           std::int64_t at = first;
                           for (; at + kUnit <= last; at += kUnit) Path::Unit(codes + at / 2, values, out + at);
                           if (at < last) {
                             std::uint8_t packed[kUnit / 2] = {};
                             T unit[kUnit];
                             std::copy_n(codes + at / 2, Nf4RowBytes(last - at), packed);
                             Path::Unit(packed, values, unit);
                             std::copy_n(unit, last - at, out + at);
                           }
                         }
                       }
                     });
}

template <typename Path>
LaunchResult DequantizeNf4On(const DequantizeNf4Args& args, const Stream& stream) {
  if (args.out.dtype == DType::kF32) {
    DequantizeNf4Rows<Path, float>(args, stream);
  } else {
    DequantizeNf4Rows<Path, BF16>(args, stream);
  }
  return {};
}

}  // namespace nibble::kernels
