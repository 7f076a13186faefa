// The operations of Vec16Avx2, with the same bits, in one AVX-512 register; vec16_avx2.h describes them. Include only
// from *_avx512.cc.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace nibble::kernels {

struct Vec16Avx512 {
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 32;  // number of vectors that fit into the 32 registers
  __m512 v;

  static Vec16Avx512 Set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec16Avx512 Zero() { return {_mm512_setzero_ps()}; }
  static __mmask16 First(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static __m512 Widen(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
  static Vec16Avx512 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec16Avx512 Load(const BF16* p) { return {Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
  static Vec16Avx512 Load(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  static Vec16Avx512 LoadPartial(const float* p, int n, float fill = 0.0f) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), First(n), p)};
  }
  static Vec16Avx512 LoadPartial(const BF16* p, int n, float fill = 0.0f) {
    const __m512 x = Widen(_mm256_maskz_loadu_epi16(First(n), p));
    return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), First(n), x)};
  }
  void Store(float* p) const { _mm512_storeu_ps(p, v); }
  static __m256i Narrow(__m512 x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x0040));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
  }
  void Store(BF16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Narrow(v)); }
  void StorePartial(float* p, int n) const { _mm512_mask_storeu_ps(p, First(n), v); }
  void StorePartial(BF16* p, int n) const { _mm256_mask_storeu_epi16(p, First(n), Narrow(v)); }

  friend Vec16Avx512 operator+(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec16Avx512 operator-(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec16Avx512 operator*(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec16Avx512 operator/(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec16Avx512 Fma(Vec16Avx512 a, Vec16Avx512 b, Vec16Avx512 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec16Avx512 Max(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec16Avx512 Min(Vec16Avx512 a, Vec16Avx512 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec16Avx512 Abs(Vec16Avx512 a) { return {_mm512_abs_ps(a.v)}; }
  static Vec16Avx512 Sqrt(Vec16Avx512 a) { return {_mm512_sqrt_ps(a.v)}; }
  static Vec16Avx512 Rne(Vec16Avx512 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static Vec16Avx512 Scale2(Vec16Avx512 a, Vec16Avx512 n) {
    const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
  }
  static Vec16Avx512 ScaleWide(Vec16Avx512 a, Vec16Avx512 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  static Vec16Avx512 SelectLess(Vec16Avx512 a, Vec16Avx512 b, Vec16Avx512 x, Vec16Avx512 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
  }
  static Vec16Avx512 Select(std::uint32_t bits, Vec16Avx512 x, Vec16Avx512 y) {
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), y.v, x.v)};
  }
  static std::uint32_t MaskGreater(Vec16Avx512 a, Vec16Avx512 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
  void StoreCodes(std::int8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  void StoreCodes(std::int16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
  }
  static void StoreQuads(Vec16Avx512 a, Vec16Avx512 b, Vec16Avx512 c, Vec16Avx512 d, std::int8_t* p) {
    const __m512i byte = _mm512_set1_epi32(0xff);
    const auto word = [&](Vec16Avx512 x) { return _mm512_and_si512(_mm512_cvtps_epi32(x.v), byte); };
    const __m512i low = _mm512_or_si512(word(a), _mm512_slli_epi32(word(b), 8));
    const __m512i high = _mm512_or_si512(_mm512_slli_epi32(word(c), 16), _mm512_slli_epi32(word(d), 24));
    _mm512_storeu_si512(p, _mm512_or_si512(low, high));
  }
  template <int I>
  static Vec16Avx512 FromQuads(const std::int8_t* p) {
    const __m512i quads = _mm512_loadu_si512(p);
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(I == 3 ? quads : _mm512_slli_epi32(quads, 24 - 8 * I), 24))};
  }
  float ReduceSum() const {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }
  struct Sum64 {
    __m512d lo = _mm512_setzero_pd();
    __m512d hi = _mm512_setzero_pd();
    void Add(Vec16Avx512 x) {
      lo = _mm512_add_pd(lo, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)));
      hi = _mm512_add_pd(hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)));
    }
    double Reduce() const {
      const __m512d s8 = _mm512_add_pd(lo, hi);
      const __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
      const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
      return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
    }
  };
  static Vec16Avx512 FromTernary(std::uint32_t word, const float (&value)[4]) {
    const __m512i shift = _mm512_setr_epi32(0, 8, 16, 24, 2, 10, 18, 26, 4, 12, 20, 28, 6, 14, 22, 30);
    const __m512i index = _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(word)), shift);
    // The look-up takes the lowest 4 bits of an index; the table repeats every 4.
    return {_mm512_permutexvar_ps(index, _mm512_broadcast_f32x4(_mm_loadu_ps(value)))};
  }
  float ReduceMax() const { return _mm512_reduce_max_ps(v); }
};

}  // namespace nibble::kernels
