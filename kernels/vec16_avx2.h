// Sixteen virtual f32 lanes in two AVX2 registers; include only from *_avx2.cc. Vec16Avx512 (vec16_avx512.h) has the
// same operations with the same bits, so an op written once as a template over Vec gives the results of its plain
// loops on both (docs/numerics.md 9). Partial loads fill the missing lanes; partial stores leave memory past
// n untouched.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "kernels/dtype.h"

namespace nibble::kernels {

struct Vec16Avx2 {
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 8;  // number of vectors that fit into the 16 registers
  // permute4x64 after a pack of two registers, which works within 128-bit lanes: quadwords 0, 2, 1, 3.
  static constexpr int kAfterPack = 0xd8;
  __m256 lo, hi;

  static Vec16Avx2 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec16Avx2 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static __m256 Widen(__m128i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)); }
  static Vec16Avx2 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec16Avx2 Load(const BF16* p) {
    return {Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Vec16Avx2 Load(const std::int8_t* p) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
  }
  template <typename T>
  static Vec16Avx2 LoadPartial(const T* p, int n, float fill = 0.0f) {
    alignas(32) float t[kLanes];
    for (int i = 0; i < kLanes; ++i) t[i] = i < n ? ToFloat(p[i]) : fill;
    return Load(t);
  }
  void Store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  // The bits of ToBF16 in 32-bit lanes.
  static __m256i Narrow(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x0040));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  }
  void Store(BF16* p) const {
    const __m256i packed = _mm256_packus_epi32(Narrow(lo), Narrow(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, kAfterPack));
  }
  template <typename T>
  void StorePartial(T* p, int n) const {
    alignas(32) float t[kLanes];
    Store(t);
    for (int i = 0; i < n; ++i) p[i] = RoundTo<T>(t[i]);
  }

  friend Vec16Avx2 operator+(Vec16Avx2 a, Vec16Avx2 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  friend Vec16Avx2 operator-(Vec16Avx2 a, Vec16Avx2 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  friend Vec16Avx2 operator*(Vec16Avx2 a, Vec16Avx2 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  friend Vec16Avx2 operator/(Vec16Avx2 a, Vec16Avx2 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  // a * b + c in one rounding.
  static Vec16Avx2 Fma(Vec16Avx2 a, Vec16Avx2 b, Vec16Avx2 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  // Max and Min return the second operand where the operands are equal or either is NaN.
  static Vec16Avx2 Max(Vec16Avx2 a, Vec16Avx2 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static Vec16Avx2 Min(Vec16Avx2 a, Vec16Avx2 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static Vec16Avx2 Abs(Vec16Avx2 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }
  static Vec16Avx2 Sqrt(Vec16Avx2 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
  // Round to nearest, ties to even.
  static Vec16Avx2 Rne(Vec16Avx2 a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
  }
  static __m256 Pow2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  // a * 2^n for integral n in [-126, 127]: one multiplication by an exact power of two.
  static Vec16Avx2 Scale2(Vec16Avx2 a, Vec16Avx2 n) {
    return {_mm256_mul_ps(a.lo, Pow2(n.lo)), _mm256_mul_ps(a.hi, Pow2(n.hi))};
  }
  // a * 2^n for integral n in [-252, 254]. a must be about 1 (so that only the last step rounds), or so large that the
  // result is inf.
  static Vec16Avx2 ScaleWide(Vec16Avx2 a, Vec16Avx2 n) {
    const Vec16Avx2 half = Rne(n * Set1(0.5f));
    return Scale2(Scale2(a, half), n - half);
  }
  // a < b ? x : y, lane by lane; y where either is NaN.
  static Vec16Avx2 SelectLess(Vec16Avx2 a, Vec16Avx2 b, Vec16Avx2 x, Vec16Avx2 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  // Lane l of x where bit l is set, otherwise of y.
  static Vec16Avx2 Select(std::uint32_t bits, Vec16Avx2 x, Vec16Avx2 y) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    const auto half = [&](__m256i bit, __m256 from_x, __m256 from_y) {
      const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
      return _mm256_blendv_ps(from_y, from_x, _mm256_castsi256_ps(set));
    };
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return {half(bit, x.lo, y.lo), half(_mm256_slli_epi32(bit, 8), x.hi, y.hi)};
  }
  // Bit l set where lane l of a > b.
  static std::uint32_t MaskGreater(Vec16Avx2 a, Vec16Avx2 b) {
    const int lo_mask = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
    const int hi_mask = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
    return static_cast<std::uint32_t>(lo_mask | hi_mask << 8);
  }
  __m256i Words() const {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(lo), _mm256_cvtps_epi32(hi));
    return _mm256_permute4x64_epi64(packed, kAfterPack);
  }
  // Lanes must hold integers in the range of the type.
  void StoreCodes(std::int16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Words()); }
  void StoreCodes(std::int8_t* p) const {
    const __m256i words = Words();
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }
  // Stores 16 groups of 4 codes: lane l of a, b, c and d are bytes 4 l to 4 l + 3. Lanes hold integers in the range of
  // int8.
  static void StoreQuads(Vec16Avx2 a, Vec16Avx2 b, Vec16Avx2 c, Vec16Avx2 d, std::int8_t* p) {
    StoreQuads(a.lo, b.lo, c.lo, d.lo, p);
    StoreQuads(a.hi, b.hi, c.hi, d.hi, p + 32);
  }
  static void StoreQuads(__m256 a, __m256 b, __m256 c, __m256 d, std::int8_t* p) {
    const auto word = [](__m256 x) { return _mm256_and_si256(_mm256_cvtps_epi32(x), _mm256_set1_epi32(0xff)); };
    const __m256i low = _mm256_or_si256(word(a), _mm256_slli_epi32(word(b), 8));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi32(word(c), 16), _mm256_slli_epi32(word(d), 24));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(low, high));
  }
  // Lane l is byte 4 l + I of 64 bytes: one k of a tile of int8 codes (formats/int8.h).
  template <int I>
  static Vec16Avx2 FromQuads(const std::int8_t* p) {
    const auto half = [](const std::int8_t* bytes) {
      const __m256i quads = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(I == 3 ? quads : _mm256_slli_epi32(quads, 24 - 8 * I), 24));
    };
    return {half(p), half(p + 32)};
  }
  // The fixed tree: l + (l + 8), then + 4, + 2, + 1.
  float ReduceSum() const {
    const __m256 s8 = _mm256_add_ps(lo, hi);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }
  // Sixteen f64 lanes to which f32 vectors are added; Reduce uses the fixed tree of ReduceSum.
  struct Sum64 {
    __m256d part[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    void Add(Vec16Avx2 x) {
      part[0] = _mm256_add_pd(part[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)));
      part[1] = _mm256_add_pd(part[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1)));
      part[2] = _mm256_add_pd(part[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)));
      part[3] = _mm256_add_pd(part[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1)));
    }
    double Reduce() const {
      const __m256d s4 = _mm256_add_pd(_mm256_add_pd(part[0], part[2]), _mm256_add_pd(part[1], part[3]));
      const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
      return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
    }
  };
  // value[code] for the sixteen 2-bit codes of a word of a ternary tile (formats/ternary.h), k ascending.
  static Vec16Avx2 FromTernary(std::uint32_t word, const float (&value)[4]) {
    const __m256i w = _mm256_set1_epi32(static_cast<int>(word));
    const __m256 table = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(value));
    const __m256i lo = _mm256_srlv_epi32(w, _mm256_setr_epi32(0, 8, 16, 24, 2, 10, 18, 26));
    const __m256i hi = _mm256_srlv_epi32(w, _mm256_setr_epi32(4, 12, 20, 28, 6, 14, 22, 30));
    // Within 128 bits the look-up takes the lowest 2 bits of an index.
    return {_mm256_permutevar_ps(table, lo), _mm256_permutevar_ps(table, hi)};
  }
  float ReduceMax() const {
    const __m256 m8 = _mm256_max_ps(lo, hi);
    const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
  }
};

}  // namespace nibble::kernels
