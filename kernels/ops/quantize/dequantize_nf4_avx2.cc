// The AVX2 path of dequantize_nf4. The sixteen possible values of a block are computed and rounded once, as in the
// plain loops, then looked up: by byte shuffles for bf16, by permutes for f32.
#include <immintrin.h>

#include "kernels/ops/quantize/dequantize_nf4_rows.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

// A Path of dequantize_nf4_rows.h.
struct Avx2 {
  // A table of bf16: low bytes and high bytes separately, each in both lanes.
  struct Table {
    __m256i low_bytes, high_bytes;
  };

  static Vec16Avx2 Values(float absmax, float) { return Vec16Avx2::Load(kNf4Book.data()) * Vec16Avx2::Set1(absmax); }
  static Table Values(float absmax, BF16) {
    std::uint16_t value[16];
    Values(absmax, 0.0f).Store(reinterpret_cast<BF16*>(value));
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(value));
    const __m256i low_words = _mm256_and_si256(words, _mm256_set1_epi16(255));
    const __m256i high_words = _mm256_srli_epi16(words, 8);
    // packus leaves the quadwords a, a, b, b; 0x88 makes them a, b, a, b.
    return {_mm256_permute4x64_epi64(_mm256_packus_epi16(low_words, low_words), 0x88),
            _mm256_permute4x64_epi64(_mm256_packus_epi16(high_words, high_words), 0x88)};
  }

  // The codes of 16 bytes in the order of their elements: elements 0..15 in the low lane, 16..31 in the high lane.
  static __m256i Codes(const std::uint8_t* codes) {
    const __m128i byte = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(_mm_srli_epi16(byte, 4), nibble);
    const __m128i odd = _mm_and_si128(byte, nibble);
    return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  }

  static void Unit(const std::uint8_t* codes, const Table& values, BF16* out) {
    const __m256i at = Codes(codes);
    const __m256i low = _mm256_shuffle_epi8(values.low_bytes, at);
    const __m256i high = _mm256_shuffle_epi8(values.high_bytes, at);
    const __m256i a = _mm256_unpacklo_epi8(low, high);  // elements 0..7 and 16..23
    const __m256i b = _mm256_unpackhi_epi8(low, high);  // elements 8..15 and 24..31
    __m256i* to = reinterpret_cast<__m256i*>(out);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, b, 0x31));
  }

  static void Unit(const std::uint8_t* codes, const Vec16Avx2& values, float* out) {
    for (int i = 0; i < 4; ++i) {
      std::uint32_t four;
      std::copy_n(codes + 4 * i, sizeof four, reinterpret_cast<std::uint8_t*>(&four));
      const __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(static_cast<int>(four)));
      // Even lanes take the high nibble, odd lanes the low one; the permute reads three bits, the blend the fourth.
      const __m256i at = _mm256_or_si256(_mm256_srli_epi64(byte, 4), _mm256_slli_epi64(byte, 32));
      const __m256 low = _mm256_permutevar8x32_ps(values.lo, at);
      const __m256 high = _mm256_permutevar8x32_ps(values.hi, at);
      _mm256_storeu_ps(out + 8 * i, _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
    }
  }
};

}  // namespace

LaunchResult DequantizeNf4Avx2(const DequantizeNf4Args& args, const Stream& stream) {
  return DequantizeNf4On<Avx2>(args, stream);
}

}  // namespace nibble::kernels
