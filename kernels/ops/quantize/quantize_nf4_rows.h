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

// Quantizes the elements of one block and returns its absmax. The Path works on units of 32 elements, which are 16
// bytes of codes:
//   TopMagnitude(const T* x, units)   the largest magnitude's bits, compared as integers
//   Encode(const T* x, inverse, codes)   the codes of one unit
template <typename Path, typename T>
float QuantizeNf4Block(const T* x, std::int64_t elements, std::uint8_t* codes) {
  constexpr std::int64_t kUnit = kNf4SmallestBlock;
  const std::int64_t units = elements / kUnit;
  const std::int64_t tail = elements % kUnit;
  std::uint32_t top = Path::TopMagnitude(x, units);
  T padded[kUnit];
  if (tail != 0) {  // padded with zeros, which do not change absmax and get code 7
    std::fill(std::copy_n(x + units * kUnit, tail, padded), padded + kUnit, T{});
    top = std::max(top, Path::TopMagnitude(padded, 1));
  }
  const float absmax = std::bit_cast<float>(top);
  const float inverse = Nf4Inverse(absmax);
  for (std::int64_t u = 0; u < units; ++u) Path::Encode(x + u * kUnit, inverse, codes + u * kUnit / 2);
  if (tail != 0) {
    std::uint8_t packed[kUnit / 2];
    Path::Encode(padded, inverse, packed);
    std::copy_n(packed, Nf4RowBytes(tail), codes + units * kUnit / 2);
  }
  return absmax;
}

template <typename Path, typename T>
void QuantizeNf4Rows(const QuantizeNf4Args& args, const Stream& stream) {
  const std::int64_t k = args.x.cols;
  const std::int64_t row_blocks = Nf4RowBlocks(k, args.block);
  stream.ParallelFor(
      args.x.rows, std::max<std::int64_t>(1, kQuantizeNf4PieceElements / k), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const T* x = args.x.Row<T>(r);
          std::uint8_t* codes = args.codes + r * Nf4RowBytes(k);
          float* absmax = args.absmax + r * row_blocks;
          for (std::int64_t b = 0; b < row_blocks; ++b) {
            const std::int64_t first = b * args.block;
            absmax[b] = QuantizeNf4Block<Path>(x + first, std::min(args.block, k - first), codes + first / 2);
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
