// The loop over rows and blocks that the AVX paths of dequantize_nf4 share. A Path is in an anonymous namespace, so
// that the linker cannot share an instantiation with the path of another instruction set.
#pragma once
#include <algorithm>

#include "kernels/ops/quantize/dequantize_nf4_launch.h"

namespace nibble::kernels {

// About 16k elements per piece: for fewer, a second thread costs more than it saves.
inline constexpr std::int64_t kDequantizeNf4PieceElements = 16384;

// Path::Block(const std::uint8_t* codes, float absmax, T* out) writes the 64 elements of 32 bytes.
template <typename Path, typename T>
void DequantizeNf4Rows(const DequantizeNf4Args& args, const Stream& stream) {
  const std::int64_t k = args.w.cols;
  const std::int64_t full = k / kNf4Block;
  const std::int64_t tail = k % kNf4Block;
  stream.ParallelFor(args.w.rows, std::max<std::int64_t>(1, kDequantizeNf4PieceElements / k),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t r = begin; r < end; ++r) {
                         const std::uint8_t* codes = args.w.codes + r * Nf4RowBytes(k);
                         const float* absmax = args.w.absmax + r * Nf4RowBlocks(k);
                         T* out = args.out.Row<T>(r);
                         for (std::int64_t b = 0; b < full; ++b) {
                           Path::Block(codes + b * (kNf4Block / 2), absmax[b], out + b * kNf4Block);
                         }
                         if (tail != 0) {
                           std::uint8_t packed[kNf4Block / 2] = {};
                           T block[kNf4Block];
                           std::copy_n(codes + full * (kNf4Block / 2), Nf4RowBytes(tail), packed);
                           Path::Block(packed, absmax[full], block);
                           std::copy_n(block, tail, out + full * kNf4Block);
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
