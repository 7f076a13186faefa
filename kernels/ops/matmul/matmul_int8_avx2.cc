// The AVX2 path of matmul_int8, without VNNI: bytes are widened to 16 bits and multiplied by vpmaddwd, which is exact
// for all codes (vpmaddubsw would saturate).
#include "kernels/ops/matmul/matmul_int8_table.h"
#include "kernels/ops/matmul/matmul_tiles_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

// 16 bytes of a tile (4 outputs by 4 k) as 16-bit numbers.
inline __m256i Widen(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

struct Avx2Path {
  // 12 accumulators, the bytes of 3 rows and one register of codes fill the 16 registers.
  static constexpr int kMaxRows = 3;
  static constexpr int kMaxTiles = 1;

  template <int Rows, int Tiles>
  void Block(const MatmulInt8Args& args, std::int64_t row, std::int64_t tile) const {
    const std::int8_t* w = args.w.tiles + tile * args.w.padded_k * kInt8TileRows;
    const std::int8_t* x = args.x.codes + row * args.x.stride;
    // acc[r][q]: outputs 4q to 4q + 3, two 32-bit halves each (k 0, 1 and k 2, 3 of every four).
    __m256i acc[Rows][4];
    for (int r = 0; r < Rows; ++r) {
      for (int q = 0; q < 4; ++q) acc[r][q] = _mm256_setzero_si256();
    }
    for (std::int64_t k = 0; k < args.w.padded_k; k += 4) {
      __m256i a[Rows];
      for (int r = 0; r < Rows; ++r) {
        std::int32_t bytes;
        __builtin_memcpy(&bytes, x + r * args.x.stride + k, sizeof bytes);
        a[r] = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(bytes)));
      }
      for (int q = 0; q < 4; ++q) {
        const __m256i codes = Widen(w + k * kInt8TileRows + q * 16);
        for (int r = 0; r < Rows; ++r) acc[r][q] = _mm256_add_epi32(acc[r][q], _mm256_madd_epi16(codes, a[r]));
      }
    }
    for (int r = 0; r < Rows; ++r) {
      // hadd joins the halves within 128-bit lanes: (0 1 4 5 | 2 3 6 7), which the permutation puts in order.
      const __m256i lo = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][0], acc[r][1]), 0xd8);
      const __m256i hi = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][2], acc[r][3]), 0xd8);
      StoreTile(args, row + r, tile, Vec16Avx2{_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}, [w](std::int32_t j) {
        const std::int8_t* p = w + j / 4 * 64;
        // Shifts byte j % 4 of each 32-bit lane to the top, then down again with its sign.
        const __m128i up = _mm_cvtsi32_si128(24 - 8 * (j & 3));
        const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
        return Vec16Avx2{_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sll_epi32(first, up), 24)),
                         _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sll_epi32(second, up), 24))};
      });
    }
  }
};

}  // namespace

LaunchResult MatmulInt8Avx2(const MatmulInt8Args& args, const Stream& stream) {
  return MatmulTiles(Avx2Path{}, args, stream);
}

}  // namespace nibble::kernels
