// The AVX2 path of matmul_nf4. In the copies of x and w (matmul_nf4_tiles.h), a strip of 64 holds its 32 even elements
// first, then its 32 odd elements.
#include <immintrin.h>

#include <type_traits>

#include "kernels/ops/matmul/matmul_nf4_tiles.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

// The sum of the lanes of each of four vectors.
inline __m128 Sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// f32 products; T is x's type, to which weights are rounded.
template <typename T>
struct Fma {
  using X = T;
  using Element = float;

  static Vec16Avx2 Values(float absmax) {
    const Vec16Avx2 v = Vec16Avx2::Load(kNf4Book.data()) * Vec16Avx2::Set1(absmax);
    if constexpr (std::is_same_v<T, float>) {
      return v;
    } else {
      return {_mm256_castsi256_ps(_mm256_slli_epi32(Vec16Avx2::Narrow(v.lo), 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(Vec16Avx2::Narrow(v.hi), 16))};
    }
  }

  // Entries `at` of the sixteen values; bits of `at` above the fourth do not matter.
  static __m256 Lookup(const Vec16Avx2& values, __m256i at) {
    const __m256 low = _mm256_permutevar8x32_ps(values.lo, at);
    const __m256 high = _mm256_permutevar8x32_ps(values.hi, at);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
  }
  static __m256i Bytes(const std::uint8_t* codes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  }

  // 0x88 selects the even elements of each 128-bit lane, 0xdd the odd ones; 0xd8 exchanges the middle quadwords.
  static void Pack(const X* x, float* out) {
    const auto in_order = [](__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); };
    for (int i = 0; i < 4; ++i) {
      const Vec16Avx2 v = Vec16Avx2::Load(x + 16 * i);
      _mm256_storeu_ps(out + 8 * i, in_order(_mm256_shuffle_ps(v.lo, v.hi, 0x88)));
      _mm256_storeu_ps(out + 8 * i + 32, in_order(_mm256_shuffle_ps(v.lo, v.hi, 0xdd)));
    }
  }

  template <int kScales>
  static void Decode(const std::uint8_t* codes, const float* absmax, float* out) {
    Vec16Avx2 values = Values(absmax[0]);
    for (int i = 0; i < 4; ++i) {
      if (kScales == 2 && i == 2) values = Values(absmax[kScales - 1]);
      const __m256i byte = Bytes(codes + 8 * i);
      _mm256_storeu_ps(out + 8 * i, Lookup(values, _mm256_srli_epi32(byte, 4)));
      _mm256_storeu_ps(out + 8 * i + 32, Lookup(values, byte));
    }
  }

  template <int kM, int kScales>
  static void Few(const float* x, std::int64_t stride, const Nf4Rows& w, std::int64_t whole, float* out) {
    __m256 sum[kM][4];
    for (int r = 0; r < 4; ++r) {  // one row of w at a time: the sums of four would not fit in 16 registers
      __m256 even_sum[kM], odd_sum[kM];
      for (int m = 0; m < kM; ++m) even_sum[m] = odd_sum[m] = _mm256_setzero_ps();
      for (std::int64_t s = 0; s < whole; ++s) {
        const float* absmax = w.Scale<kScales>(r, s);
        Vec16Avx2 values = Values(absmax[0]);
        for (int i = 0; i < 4; ++i) {
          if (kScales == 2 && i == 2) values = Values(absmax[kScales - 1]);
          const __m256i byte = Bytes(w.codes + r * w.row_bytes + s * 32 + 8 * i);
          const __m256 even = Lookup(values, _mm256_srli_epi32(byte, 4));
          const __m256 odd = Lookup(values, byte);
          for (int m = 0; m < kM; ++m) {
            const float* xm = x + m * stride + s * kNf4Strip + 8 * i;
            even_sum[m] = _mm256_fmadd_ps(even, _mm256_loadu_ps(xm), even_sum[m]);
            odd_sum[m] = _mm256_fmadd_ps(odd, _mm256_loadu_ps(xm + 32), odd_sum[m]);
          }
        }
      }
      for (int m = 0; m < kM; ++m) sum[m][r] = _mm256_add_ps(even_sum[m], odd_sum[m]);
    }
    for (int m = 0; m < kM; ++m) {
      const __m128 s = Sum4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
      _mm_storeu_ps(out + 4 * m, _mm_add_ps(_mm_loadu_ps(out + 4 * m), s));
    }
  }

  static void Tile(const float* x, const float* w, std::int64_t padded_k, float* out) {
    for (int i = 0; i < 4; i += 2) {  // 2 x 4: eight sums leave registers for the loads
      __m256 sum[2][4];
      for (auto& row : sum) {
        for (__m256& s : row) s = _mm256_setzero_ps();
      }
      for (std::int64_t k = 0; k < padded_k; k += 8) {
        const __m256 a0 = _mm256_load_ps(x + i * padded_k + k);
        const __m256 a1 = _mm256_load_ps(x + (i + 1) * padded_k + k);
        for (int j = 0; j < 4; ++j) {
          const __m256 b = _mm256_load_ps(w + j * padded_k + k);
          sum[0][j] = _mm256_fmadd_ps(a0, b, sum[0][j]);
          sum[1][j] = _mm256_fmadd_ps(a1, b, sum[1][j]);
        }
      }
      for (int r = 0; r < 2; ++r) {
        _mm_storeu_ps(out + 4 * (i + r), Sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
      }
    }
  }
};

}  // namespace

LaunchResult MatmulNf4Avx2(const MatmulNf4Args& args, const Stream& stream) {
  if (args.x.dtype == DType::kF32) return MatmulNf4On<Fma<float>>(args, stream);
  return MatmulNf4On<Fma<BF16>>(args, stream);
}

}  // namespace nibble::kernels
