// The AVX2 path of matmul_ternary, without VNNI: vpmaddubsw of stored codes 0, 1, 2 and activations gives 16-bit sums
// of two products, at most 2 * 2 * 128 = 512 in magnitude. Adding 64 of them stays within [-32768, 32512], so widening
// to 32 bits after 64 additions (16 blocks of 4 planes) is exact. Activations of 16 bits go through vpmaddwd, whose
// sums have 32 bits already.
#include "kernels/ops/matmul/matmul_ternary_table.h"
#include "kernels/ops/matmul/matmul_ternary_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

inline Vec16Avx2 CodesOf(const std::uint8_t* tile, std::int32_t j) {
  const __m128i shift = _mm_cvtsi32_si128(8 * (j % 4) + TernaryShift(j));
  const auto half = [&](int offset) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + j / 16 * 64 + offset));
    const __m256i code = _mm256_and_si256(_mm256_srl_epi32(bytes, shift), _mm256_set1_epi32(3));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(1)));
  };
  return {half(0), half(32)};
}

template <typename T>
inline std::int32_t LoadWord(const T* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}

template <typename T>
struct Avx2Path {
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxTiles = 1;
  static constexpr std::int64_t kBlocks = 16;  // blocks whose 16-bit sums cannot overflow

  const std::int32_t* row_sum;

  // One plane of a tile: the codes of k to k + 3 (Plane = 0), k + 4 to k + 7 and so on, one per byte.
  template <int Plane>
  static __m256i Codes(const std::uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_and_si256(Plane == 0 ? bytes : _mm256_srli_epi16(bytes, 2 * Plane), _mm256_set1_epi8(3));
  }

  // Adds products to 16-bit sums if T is i8, to 32-bit sums if T is i16.
  template <int Plane, int Rows>
  static inline __attribute__((always_inline)) void Step(const std::uint8_t* w, const T* x, std::int64_t stride,
                                                         __m256i (&acc)[Rows][2]) {
    const __m256i codes[2] = {Codes<Plane>(w), Codes<Plane>(w + 32)};
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const T* p = x + r * stride + 4 * Plane;
      if constexpr (sizeof(T) == 1) {
        const __m256i a = _mm256_set1_epi32(LoadWord(p));
        for (int h = 0; h < 2; ++h) acc[r][h] = _mm256_add_epi16(acc[r][h], _mm256_maddubs_epi16(codes[h], a));
      } else {
        // Even bytes are k and k + 2, odd ones k + 1 and k + 3.
        const std::int32_t first = LoadWord(p), second = LoadWord(p + 2);
        const __m256i even = _mm256_set1_epi32((first & 0xffff) | second << 16);
        const __m256i odd = _mm256_set1_epi32((first >> 16 & 0xffff) | (second & ~0xffff));
        for (int h = 0; h < 2; ++h) {
          const __m256i low = _mm256_madd_epi16(_mm256_and_si256(codes[h], _mm256_set1_epi16(0xff)), even);
          const __m256i high = _mm256_madd_epi16(_mm256_srli_epi16(codes[h], 8), odd);
          acc[r][h] = _mm256_add_epi32(acc[r][h], _mm256_add_epi32(low, high));
        }
      }
    }
  }

  template <int Rows, int Tiles>
  void Block(const MatmulTernaryArgs& args, std::int64_t row, std::int64_t tile) const {
    const std::int64_t stride = args.x.stride;
    const std::int64_t blocks = args.w.padded_k / kTernaryBlock;
    const std::uint8_t* w = args.w.tiles + tile * blocks * 64;
    const T* x;
    if constexpr (sizeof(T) == 1) {
      x = args.x.codes + row * stride;
    } else {
      x = args.x.wide_codes + row * stride;
    }
    __m256i sums[Rows][2];
    for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = _mm256_set1_epi32(-row_sum[row + r]);
    for (std::int64_t first = 0; first < blocks; first += kBlocks) {
      __m256i acc[Rows][2];
      for (int r = 0; r < Rows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
      for (std::int64_t b = first; b < std::min(blocks, first + kBlocks); ++b) {
        const T* p = x + b * kTernaryBlock;
        Step<0, Rows>(w + b * 64, p, stride, acc);
        Step<1, Rows>(w + b * 64, p, stride, acc);
        Step<2, Rows>(w + b * 64, p, stride, acc);
        Step<3, Rows>(w + b * 64, p, stride, acc);
      }
      for (int r = 0; r < Rows; ++r) {
        for (int h = 0; h < 2; ++h) {
          const __m256i wide = sizeof(T) == 1 ? _mm256_madd_epi16(acc[r][h], _mm256_set1_epi16(1)) : acc[r][h];
          sums[r][h] = _mm256_add_epi32(sums[r][h], wide);
        }
      }
    }
    for (int r = 0; r < Rows; ++r) {
      StoreTile(args, row + r, tile, Vec16Avx2{_mm256_cvtepi32_ps(sums[r][0]), _mm256_cvtepi32_ps(sums[r][1])},
                [w](std::int32_t j) { return CodesOf(w, j); });
    }
  }
};

}  // namespace

LaunchResult MatmulTernaryAvx2(const MatmulTernaryArgs& args, const Stream& stream) {
  return MatmulTernaryVec<Avx2Path>(args, stream);
}

}  // namespace nibble::kernels
