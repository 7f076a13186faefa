// The AVX2 path of quantize_nf4.
#include <immintrin.h>

#include "kernels/ops/quantize/quantize_nf4_rows.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

struct Avx2 {
  // Entry `at` of a table of 16 floats, for each lane. permutevar8x32 reads only the low three bits of `at`. The shift
  // moves bit 3 to the sign, by which blendv chooses the half.
  static __m256 Lookup(__m256 low, __m256 high, __m256i at) {
    const __m256 from_low = _mm256_permutevar8x32_ps(low, at);
    const __m256 from_high = _mm256_permutevar8x32_ps(high, at);
    return _mm256_blendv_ps(from_low, from_high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
  }

  // Binary search: four comparisons, each with the threshold that a lane's code so far selects. NaN stays at code 0, as
  // in the plain loops.
  static __m256i Codes(__m256 v, __m256 low, __m256 high) {
    const __m256 middle = _mm256_set1_ps(kNf4Thresholds[7]);
    __m256i code = _mm256_and_si256(_mm256_castps_si256(_mm256_cmp_ps(v, middle, _CMP_GT_OQ)), _mm256_set1_epi32(8));
    for (int step = 4; step > 0; step /= 2) {
      const __m256i at = _mm256_add_epi32(code, _mm256_set1_epi32(step - 1));
      const __m256 above = _mm256_cmp_ps(v, Lookup(low, high, at), _CMP_GT_OQ);
      code = _mm256_add_epi32(code, _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(step)));
    }
    return code;
  }

  static std::uint32_t ReduceMax(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
  }

  // Packs eight codes in 32-bit lanes into four bytes. A 64-bit lane holds an even element below an odd one; its low
  // byte becomes even << 4 | odd. The shuffle moves these bytes of a 128-bit half to its bytes 0 and 1, and clears the
  // bytes above.
  static void Store(__m256i code, std::uint8_t* codes) {
    const __m256i pair = _mm256_or_si256(_mm256_slli_epi64(code, 4), _mm256_srli_epi64(code, 32));
    const __m256i first_bytes =
        _mm256_shuffle_epi8(pair, _mm256_set1_epi64x(static_cast<long long>(0x8080808080800800)));
    const std::uint32_t low = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(first_bytes)));
    const std::uint32_t high = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(first_bytes, 1)));
    const std::uint32_t bytes = low | high << 16;
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&bytes), sizeof bytes, codes);
  }

  template <typename T>
  static std::uint32_t TopMagnitude(const T* x, std::int64_t units) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (std::int64_t i = 0; i < 2 * units; ++i) {
      const Vec16Avx2 v = Vec16Avx2::Load(x + 16 * i);
      top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v.lo), magnitude));
      top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v.hi), magnitude));
    }
    return ReduceMax(top);
  }

  template <typename T>
  static void Encode(const T* x, float inverse, std::uint8_t* codes) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256 low = _mm256_loadu_ps(kNf4Thresholds.data());
    const __m256i seven = _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, -1, 0);  // 15 thresholds: the high half has seven
    const __m256 high = _mm256_maskload_ps(kNf4Thresholds.data() + 8, seven);
    for (int i = 0; i < 2; ++i) {
      const Vec16Avx2 v = Vec16Avx2::Load(x + 16 * i);
      Store(Codes(_mm256_mul_ps(v.lo, factor), low, high), codes + 8 * i);
      Store(Codes(_mm256_mul_ps(v.hi, factor), low, high), codes + 8 * i + 4);
    }
  }
};

}  // namespace

LaunchResult QuantizeNf4Avx2(const QuantizeNf4Args& args, const Stream& stream) {
  return QuantizeNf4On<Avx2>(args, stream);
}

}  // namespace nibble::kernels
