// The AVX-512 path of matmul_ternary, by VNNI: the stored codes 0, 1, 2 are the unsigned operand of vpdpbusd, the
// activations the signed operand. The sum starts at minus the sum of the activations, because a stored code is
// code + 1. Exact modulo 2^32, hence exact. Activations of 16 bits go through vpdpwssd.
#include "kernels/ops/matmul/matmul_ternary_table.h"
#include "kernels/ops/matmul/matmul_ternary_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

// The codes of outlier column j: one byte per lane, moved to the lane's low bits.
inline Vec16Avx512 CodesOf(const std::uint8_t* tile, std::int32_t j) {
  const __m512i bytes = _mm512_loadu_si512(tile + j / 16 * 64);
  const __m128i shift = _mm_cvtsi32_si128(8 * (j % 4) + TernaryShift(j));
  const __m512i code = _mm512_and_si512(_mm512_srl_epi32(bytes, shift), _mm512_set1_epi32(3));
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(1)))};
}

template <typename T>
inline std::int32_t LoadWord(const T* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}

template <typename T>
struct VnniPath {
  // 24 accumulators; enough registers remain for the codes of 4 tiles and a row's word.
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxTiles = 4;
  static constexpr int kHeldRows = 3;           // up to this many rows, registers are left for the bytes of 4 tiles
  static constexpr std::int64_t kAhead = 4096;  // prefetch distance in bytes of one tile: covers the latency of DRAM

  const std::int32_t* row_sum;

  // One plane of a tile: the codes of k to k + 3 (Plane = 0), k + 4 to k + 7 and so on, one per byte.
  template <int Plane>
  static __m512i Codes(__m512i bytes) {
    return _mm512_and_si512(Plane == 0 ? bytes : _mm512_srli_epi16(bytes, 2 * Plane), _mm512_set1_epi8(3));
  }

  template <int Plane, int Rows, int Tiles>
  static inline __attribute__((always_inline)) void Step(const __m512i (&bytes)[Tiles], const T* x, std::int64_t stride,
                                                         __m512i (&acc)[Rows][Tiles]) {
    __m512i codes[Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) codes[t] = Codes<Plane>(bytes[t]);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const T* p = x + r * stride + 4 * Plane;
      if constexpr (sizeof(T) == 1) {
        const __m512i a = _mm512_set1_epi32(LoadWord(p));
#pragma GCC unroll 4
        for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm512_dpbusd_epi32(acc[r][t], codes[t], a);
      } else {
        // Even bytes are k and k + 2, odd ones k + 1 and k + 3.
        const std::int32_t first = LoadWord(p), second = LoadWord(p + 2);
        const __m512i even = _mm512_set1_epi32((first & 0xffff) | second << 16);
        const __m512i odd = _mm512_set1_epi32((first >> 16 & 0xffff) | (second & ~0xffff));
#pragma GCC unroll 4
        for (int t = 0; t < Tiles; ++t) {
          acc[r][t] = _mm512_dpwssd_epi32(acc[r][t], _mm512_and_si512(codes[t], _mm512_set1_epi16(0xff)), even);
          acc[r][t] = _mm512_dpwssd_epi32(acc[r][t], _mm512_srli_epi16(codes[t], 8), odd);
        }
      }
    }
  }

  template <int Rows, int Tiles>
  void Block(const MatmulTernaryArgs& args, std::int64_t row, std::int64_t tile) const {
    const std::int64_t tile_bytes = args.w.padded_k * kTernaryTileRows / 4;
    const std::int64_t stride = args.x.stride;
    const T* x;
    if constexpr (sizeof(T) == 1) {
      x = args.x.codes + row * stride;
    } else {
      x = args.x.wide_codes + row * stride;
    }
    const std::uint8_t* w[Tiles];
    for (int t = 0; t < Tiles; ++t) w[t] = args.w.tiles + (tile + t) * tile_bytes;
    __m512i acc[Rows][Tiles];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm512_set1_epi32(-row_sum[row + r]);
    }
    const auto step = [&](std::int64_t at, std::int64_t ahead) __attribute__((always_inline)) {
      __m512i bytes[Tiles];
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        bytes[t] = _mm512_loadu_si512(w[t] + at);
        _mm_prefetch(reinterpret_cast<const char*>(w[t] + at + ahead), _MM_HINT_T1);
        // With few rows the step waits for loads: stop the compiler from loading again for each plane.
        if constexpr (Rows <= kHeldRows) asm("" : "+v"(bytes[t]));
      }
      const T* p = x + at / 4;
      Step<0, Rows, Tiles>(bytes, p, stride, acc);
      Step<1, Rows, Tiles>(bytes, p, stride, acc);
      Step<2, Rows, Tiles>(bytes, p, stride, acc);
      Step<3, Rows, Tiles>(bytes, p, stride, acc);
    };
    // The first rows read the weight from memory: the end of each tile already prefetches the beginning of the tile
    // that this thread reads next, Tiles further on.
    std::int64_t at = 0;
    for (; at < tile_bytes - kAhead; at += 64) step(at, kAhead);
    for (; at < tile_bytes; at += 64) step(at, kAhead + (Tiles - 1) * tile_bytes);
    // Copy the sums to memory: otherwise the epilogue's loop would index acc, which then would be kept in memory during
    // the products too.
    __m512i sums[Rows * Tiles];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) sums[r * Tiles + t] = acc[r][t];
    }
    for (int i = 0; i < Rows * Tiles; ++i) {
      const std::uint8_t* p = w[i % Tiles];
      StoreTile(args, row + i / Tiles, tile + i % Tiles, Vec16Avx512{_mm512_cvtepi32_ps(sums[i])},
                [p](std::int32_t j) { return CodesOf(p, j); });
    }
  }
};

}  // namespace

LaunchResult MatmulTernaryAvx512(const MatmulTernaryArgs& args, const Stream& stream) {
  return MatmulTernaryVec<VnniPath>(args, stream);
}

}  // namespace nibble::kernels
