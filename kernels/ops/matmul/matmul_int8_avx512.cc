// The AVX-512 path of matmul_int8. VNNI's vpdpbusd multiplies unsigned by signed bytes, so 128 is added to activation
// bytes (x ^ 0x80), and 128 times row_sum(w) is subtracted from the sum: exact modulo 2^32, hence exact.
#include "kernels/ops/matmul/matmul_int8_table.h"
#include "kernels/ops/matmul/matmul_tiles_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

inline __m512i LoadTile(const std::int8_t* p) { return _mm512_loadu_si512(p); }

struct VnniPath {
  // 24 accumulators, 4 tiles and a row's bytes in 32 registers; 10 loads feed 24 products.
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxTiles = 4;
  static constexpr int kFewRows = 3;            // up to this many rows, the weight is prefetched
  static constexpr std::int64_t kAhead = 1024;  // prefetch distance in bytes of one tile; no tile is shorter

  template <int Rows, int Tiles>
  void Block(const MatmulInt8Args& args, std::int64_t row, std::int64_t tile) const {
    const std::int64_t tile_bytes = args.w.padded_k * kInt8TileRows;
    const std::int8_t* w = args.w.tiles + tile * tile_bytes;
    const std::int8_t* x = args.x.codes + row * args.x.stride;
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
    __m512i acc[Rows][Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) {
      const __m512i sums = _mm512_loadu_si512(args.w.row_sum + (tile + t) * kInt8TileRows);
      const __m512i start = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sums, 7));
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) acc[r][t] = start;
    }
    const auto step = [&](std::int64_t k, [[maybe_unused]] std::int64_t ahead) __attribute__((always_inline)) {
      __m512i tiles[Tiles];
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        const std::int8_t* p = w + t * tile_bytes + k * kInt8TileRows;
        tiles[t] = LoadTile(p);
        if constexpr (Rows <= kFewRows) _mm_prefetch(reinterpret_cast<const char*>(p + ahead), _MM_HINT_T1);
      }
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        std::int32_t bytes;
        __builtin_memcpy(&bytes, x + r * args.x.stride + k, sizeof bytes);
        const __m512i a = _mm512_xor_si512(_mm512_set1_epi32(bytes), flip);
#pragma GCC unroll 4
        for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm512_dpbusd_epi32(acc[r][t], a, tiles[t]);
      }
    };
    // With few rows the weight is read from memory: the end of each tile already prefetches the beginning of the tile
    // that this thread reads next, Tiles further on.
    const std::int64_t body = args.w.padded_k - kAhead / kInt8TileRows;
    std::int64_t k = 0;
    for (; k < body; k += 4) step(k, kAhead);
    for (; k < args.w.padded_k; k += 4) step(k, kAhead + (Tiles - 1) * tile_bytes);
    // Copy the sums to memory: otherwise the epilogue's loop would index acc, which then would be kept in memory during
    // the products too.
    __m512i sums[Rows * Tiles];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) sums[r * Tiles + t] = acc[r][t];
    }
    for (int i = 0; i < Rows * Tiles; ++i) {
      const std::int8_t* p = w + i % Tiles * tile_bytes;
      StoreTile(args, row + i / Tiles, tile + i % Tiles, Vec16Avx512{_mm512_cvtepi32_ps(sums[i])}, [p](std::int32_t j) {
        // Shifts byte j % 4 of each 32-bit lane to the top, then down again with its sign.
        const __m128i up = _mm_cvtsi32_si128(24 - 8 * (j & 3));
        const __m512i code = _mm512_srai_epi32(_mm512_sll_epi32(LoadTile(p + j / 4 * 64), up), 24);
        return Vec16Avx512{_mm512_cvtepi32_ps(code)};
      });
    }
  }
};

}  // namespace

LaunchResult MatmulInt8Avx512(const MatmulInt8Args& args, const Stream& stream) {
  return MatmulTiles(VnniPath{}, args, stream);
}

}  // namespace nibble::kernels
