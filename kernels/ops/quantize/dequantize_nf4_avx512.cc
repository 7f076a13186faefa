// The AVX-512 path of dequantize_nf4. The sixteen possible values of a block are computed and rounded once, as in the
// plain loops, then looked up by a permute.
#include <immintrin.h>

#include "kernels/ops/quantize/dequantize_nf4_rows.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

// A Path of dequantize_nf4_rows.h.
struct Avx512 {
  static __m512 Values(float absmax, float) {
    return _mm512_mul_ps(_mm512_loadu_ps(kNf4Book.data()), _mm512_set1_ps(absmax));
  }
  static __m512i Values(float absmax, BF16) {
    return _mm512_broadcast_i64x4(Vec16Avx512::Narrow(Values(absmax, 0.0f)));
  }

  static void Unit(const std::uint8_t* codes, __m512 values, float* out) {
    for (int i = 0; i < 2; ++i) {
      const __m512i byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i)));
      // Even lanes take the high nibble, odd lanes the whole byte: vpermps reads four bits of an index.
      const __m512i at = _mm512_or_si512(_mm512_srli_epi64(byte, 4), _mm512_slli_epi64(byte, 32));
      _mm512_storeu_ps(out + 16 * i, _mm512_permutexvar_ps(at, values));
    }
  }

  static void Unit(const std::uint8_t* codes, __m512i values, BF16* out) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    // vpermw reads five bits of an index; the table holds the sixteen values twice, so the fifth does not matter.
    const __m512i at = _mm512_or_si512(_mm512_srli_epi32(byte, 4), _mm512_slli_epi32(byte, 16));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(at, values));
  }
};

}  // namespace

LaunchResult DequantizeNf4Avx512(const DequantizeNf4Args& args, const Stream& stream) {
  return DequantizeNf4On<Avx512>(args, stream);
}

}  // namespace nibble::kernels
