// The loop over rows and blocks that the AVX paths of quantize_nf4 share. A Path is in an anonymous namespace, so that
// the linker cannot share an instantiation with the path of another instruction set.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/ops/quantize/quantize_nf4_launch.h"

namespace nibble::kernels {

// About 16k elements per piece: for fewer, a second thread costs more than it saves.
inline constexpr std::int64_t kQuantizeNf4PieceElements = 16384;

// 1 / absmax, or 0 where 1 / absmax is not finite (absmax is 0, a very small denormal or NaN). With 0, every finite
// value gets code 7.
static inline float Nf4Inverse(float absmax) {
  const float inverse = 1.0f / absmax;
  return inverse <= std::numeric_limits<float>::max() ? inverse : 0.0f;
}

// Path::Block(const T* x, std::uint8_t* codes) quantizes 64 elements to 32 bytes and returns absmax.
template <typename Path, typename T>
void QuantizeNf4Rows(const QuantizeNf4Args& args, const Stream& stream) {
  const std::int64_t k = args.x.cols;
  const std::int64_t full = k / kNf4Block;
  const std::int64_t tail = k % kNf4Block;
  stream.ParallelFor(args.x.rows, std::max<std::int64_t>(1, kQuantizeNf4PieceElements / k),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t r = begin; r < end; ++r) {
                         const T* x = args.x.Row<T>(r);
                         std::uint8_t* codes = args.codes + r * Nf4RowBytes(k);
                         float* absmax = args.absmax + r * Nf4RowBlocks(k);
                         for (std::int64_t b = 0; b < full; ++b) {
                           absmax[b] = Path::Block(x + b * kNf4Block, codes + b * (kNf4Block / 2));
                         }
                         if (tail != 0) {  // padded with zeros, which do not change absmax and get code 7
                           T padded[kNf4Block] = {};
                           std::uint8_t packed[kNf4Block / 2];
                           std::copy_n(x + full * kNf4Block, tail, padded);
                           absmax[full] = Path::Block(padded, packed);
                           std::copy_n(packed, Nf4RowBytes(tail), codes + full * (kNf4Block / 2));
                         }
                       }
                     });
}

template <typename Path>
LaunchResult QuantizeNf4On(const QuantizeNf4Args& args, const Stream& stream) {
  if (args.x.dtype == DType::kF32) {
    QuantizeNf4Rows<Path, float>(args, stream);
  } else {
    QuantizeNf4Rows<Path, BF16>(args, stream);
  }
  return {};
}

}  // namespace nibble::kernels
