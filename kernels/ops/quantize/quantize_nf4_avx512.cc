// The AVX-512 path of quantize_nf4.
#include <immintrin.h>

#include "kernels/ops/quantize/quantize_nf4_rows.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

struct Avx512 {
  // Binary search: four comparisons, each lane's threshold selected by a permute. NaN stays at code 0, as in the plain
  // loops.
  static __m512i Codes(__m512 v, __m512 thresholds) {
    __m512i code = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(v, _mm512_set1_ps(kNf4Thresholds[7]), _CMP_GT_OQ), 8);
    for (int step = 4; step > 0; step /= 2) {
      const __m512i at = _mm512_add_epi32(code, _mm512_set1_epi32(step - 1));
      const __mmask16 above = _mm512_cmp_ps_mask(v, _mm512_permutexvar_ps(at, thresholds), _CMP_GT_OQ);
      code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
    }
    return code;
  }

  template <typename T>
  static std::uint32_t TopMagnitude(const T* x, std::int64_t units) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < 2 * units; ++i) {
      const __m512i bits = _mm512_castps_si512(Vec16Avx512::Load(x + 16 * i).v);
      top = _mm512_max_epu32(top, _mm512_and_si512(bits, magnitude));
    }
    return _mm512_reduce_max_epu32(top);
  }

  template <typename T>
  static void Encode(const T* x, float inverse, std::uint8_t* codes) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512 thresholds = _mm512_maskz_loadu_ps(0x7fff, kNf4Thresholds.data());
    for (int i = 0; i < 2; ++i) {
      const __m512i code = Codes(_mm512_mul_ps(Vec16Avx512::Load(x + 16 * i).v, factor), thresholds);
      // A 64-bit lane holds an even element below an odd one; its low byte becomes even << 4 | odd.
      const __m512i pair = _mm512_or_si512(_mm512_slli_epi64(code, 4), _mm512_srli_epi64(code, 32));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + 8 * i), _mm512_cvtepi64_epi8(pair));
    }
  }
};

}  // namespace

LaunchResult QuantizeNf4Avx512(const QuantizeNf4Args& args, const Stream& stream) {
  return QuantizeNf4On<Avx512>(args, stream);
}

}  // namespace nibble::kernels
