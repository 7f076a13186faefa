// The AVX-512 path of matmul_nf4. In the copies of x and w (matmul_nf4_tiles.h), a strip of 64 holds its 32 even
// elements first, then its 32 odd elements. The codes of the even elements are the high nibbles of the bytes, so
// byte >> 4 gives the table indices of the first half. The byte itself gives the indices of the second half, because
// permutes ignore the bits above an index.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/ops/matmul/matmul_nf4_tiles.h"
#include "kernels/pair_product.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

// The sum of the lanes of each of four vectors.
inline __m128 Sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Prefetches a cache line that may lie past the weight: computes an address, not a pointer into the weight.
inline void Prefetch(const std::uint8_t* from, std::int64_t offset) {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(offset);
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);  // NOLINT(performance-no-int-to-ptr)
}

// f32 products; T is x's type, to which weights are rounded.
template <typename T>
struct Fma {
  using X = T;
  using Element = float;

  static __m512 Values(float absmax) {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(kNf4Book.data()), _mm512_set1_ps(absmax));
    return std::is_same_v<T, float> ? v : Vec16Avx512::Widen(Vec16Avx512::Narrow(v));
  }

  static void Pack(const X* x, float* out) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int i = 0; i < 2; ++i) {
      const __m512 a = Vec16Avx512::Load(x + 32 * i).v;
      const __m512 b = Vec16Avx512::Load(x + 32 * i + 16).v;
      _mm512_storeu_ps(out + 16 * i, _mm512_permutex2var_ps(a, even, b));
      _mm512_storeu_ps(out + 16 * i + 32, _mm512_permutex2var_ps(a, odd, b));
    }
  }

  template <int kScales>
  static void Decode(const std::uint8_t* codes, const float* absmax, float* out) {
    for (int i = 0; i < 2; ++i) {
      const __m512 values = Values(absmax[i % kScales]);
      const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i)));
      _mm512_storeu_ps(out + 16 * i, _mm512_permutexvar_ps(_mm512_srli_epi32(byte, 4), values));
      _mm512_storeu_ps(out + 16 * i + 32, _mm512_permutexvar_ps(byte, values));
    }
  }

  template <int kM, int kScales>
  static void Few(const float* x, std::int64_t stride, const Nf4Rows& w, std::int64_t whole, float* out) {
    __m512 sum[kM][4];
    for (auto& row : sum) {
      for (__m512& s : row) s = _mm512_setzero_ps();
    }
    const std::int64_t ahead = Nf4PrefetchBytes(w.row_bytes);
    for (std::int64_t s = 0; s < whole; ++s) {
      for (int r = 0; r < 4; ++r) {
        if (s % 2 == 0) Prefetch(w.codes, r * w.row_bytes + s * 32 + ahead);
        const float* absmax = w.Scale<kScales>(r, s);
        __m512 values = Values(absmax[0]);
        for (int i = 0; i < 2; ++i) {
          if (kScales == 2 && i == 1) values = Values(absmax[kScales - 1]);
          const std::uint8_t* at = w.codes + r * w.row_bytes + s * 32 + 16 * i;
          const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
          const __m512 even = _mm512_permutexvar_ps(_mm512_srli_epi32(byte, 4), values);
          const __m512 odd = _mm512_permutexvar_ps(byte, values);
          for (int m = 0; m < kM; ++m) {
            const float* xm = x + m * stride + s * kNf4Strip + 16 * i;
            sum[m][r] = _mm512_fmadd_ps(even, _mm512_loadu_ps(xm), sum[m][r]);
            sum[m][r] = _mm512_fmadd_ps(odd, _mm512_loadu_ps(xm + 32), sum[m][r]);
          }
        }
      }
    }
    for (int m = 0; m < kM; ++m) {
      const __m128 s = Sum4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
      _mm_storeu_ps(out + 4 * m, _mm_add_ps(_mm_loadu_ps(out + 4 * m), s));
    }
  }

  static void Tile(const float* x, const float* w, std::int64_t padded_k, float* out) {
    __m512 sum[4][4];
    for (auto& row : sum) {
      for (__m512& s : row) s = _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < padded_k; k += 16) {
      __m512 b[4];
      for (int j = 0; j < 4; ++j) b[j] = _mm512_load_ps(w + j * padded_k + k);
      for (int i = 0; i < 4; ++i) {
        const __m512 a = _mm512_load_ps(x + i * padded_k + k);
        for (int j = 0; j < 4; ++j) sum[i][j] = _mm512_fmadd_ps(a, b[j], sum[i][j]);
      }
    }
    for (int i = 0; i < 4; ++i) _mm_storeu_ps(out + 4 * i, Sum4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
  }
};

// Adds products of bf16 pairs to f32 sums, on machines that have vdpbf16ps besides what kAvx512 requires. Only for few
// rows of x: PairProduct is used for more.
struct Dot {
  using X = BF16;
  using Element = BF16;

  NIBBLE_BF16_DOT static __m256i Table(float absmax) {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(kNf4Book.data()), _mm512_set1_ps(absmax));
    const __m256bh narrow = _mm512_cvtneps_pbh(v);
    __m256i bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    return bits;
  }
  NIBBLE_BF16_DOT static __m512i Values(float absmax) { return _mm512_broadcast_i64x4(Table(absmax)); }

  static void Pack(const BF16* x, BF16* out) {
    __m512i even = _mm512_set1_epi32(0x00020000);  // words 0, 2, 4, ...: lane i holds 4 i and 4 i + 2
    even = _mm512_add_epi32(
        even, _mm512_mullo_epi32(_mm512_set1_epi32(0x00040004),
                                 _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
    const __m512i a = _mm512_loadu_si512(x);
    const __m512i b = _mm512_loadu_si512(x + 32);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, even, b));
    _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi16(a, odd, b));
  }

  static __m512i Bytes(const std::uint8_t* codes) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  }

  // The weights of the even and of the odd elements of a strip. A permute reads five bits of an index. With one scale,
  // the table holds its sixteen values twice, so the fifth bit does not matter. With two, it holds sixteen values for
  // the first 32 elements, then sixteen for the last 32. The last 32 elements are in the upper lanes, whose indices
  // have the fifth bit set.
  template <int kScales>
  NIBBLE_BF16_DOT static void Weights(__m512i byte, const float* absmax, __m512i* even, __m512i* odd) {
    if constexpr (kScales == 1) {
      const __m512i values = Values(absmax[0]);
      *even = _mm512_permutexvar_epi16(_mm512_srli_epi16(byte, 4), values);
      *odd = _mm512_permutexvar_epi16(byte, values);
    } else {
      const __m512i values = _mm512_inserti64x4(_mm512_castsi256_si512(Table(absmax[0])), Table(absmax[1]), 1);
      const __m512i upper = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
      const __m512i code = _mm512_and_si512(byte, _mm512_set1_epi16(15));
      *even = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(byte, 4), upper), values);
      *odd = _mm512_permutexvar_epi16(_mm512_or_si512(code, upper), values);
    }
  }

  NIBBLE_BF16_DOT static __m512 Add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  template <int kM, int kScales>
  NIBBLE_BF16_DOT static void Few(const BF16* x, std::int64_t stride, const Nf4Rows& w, std::int64_t whole,
                                  float* out) {
    __m512 sum[kM][4];
    for (auto& row : sum) {
      for (__m512& s : row) s = _mm512_setzero_ps();
    }
    const std::int64_t ahead = Nf4PrefetchBytes(w.row_bytes);
    for (std::int64_t s = 0; s < whole; ++s) {
      for (int r = 0; r < 4; ++r) {
        if (s % 2 == 0) Prefetch(w.codes, r * w.row_bytes + s * 32 + ahead);
        __m512i even, odd;
        Weights<kScales>(Bytes(w.codes + r * w.row_bytes + s * 32), w.Scale<kScales>(r, s), &even, &odd);
        for (int m = 0; m < kM; ++m) {
          const BF16* xm = x + m * stride + s * kNf4Strip;
          sum[m][r] = Add(sum[m][r], even, _mm512_loadu_si512(xm));
          sum[m][r] = Add(sum[m][r], odd, _mm512_loadu_si512(xm + 32));
        }
      }
    }
    for (int m = 0; m < kM; ++m) {
      const __m128 s = Sum4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
      _mm_storeu_ps(out + 4 * m, _mm_add_ps(_mm_loadu_ps(out + 4 * m), s));
    }
  }
};

// The Weights class of PairProduct for NF4: one byte of codes is one pair, its high nibble the first element.
class Nf4Pairs {
 public:
  explicit Nf4Pairs(const Nf4Weight& w)
      : w_(w),
        blocks_(Nf4RowBlocks(w.cols, w.block)),
        shift_(Nf4BlockShift(w.block)),
        row_bytes_(Nf4RowBytes(w.cols)) {}
  std::int64_t rows() const { return w_.rows; }

  NIBBLE_BF16_DOT void Load(std::int64_t row, std::int64_t strip, __m512i* low, __m512i* high) const {
    constexpr std::int64_t kBytes = kNf4Strip / 2;
    const std::uint8_t* codes = w_.codes + row * row_bytes_ + strip * kBytes;
    const std::int64_t bytes = std::min(kBytes, row_bytes_ - strip * kBytes);
    std::uint8_t last[kBytes] = {};
    if (bytes < kBytes) {
      std::memcpy(last, codes, static_cast<std::size_t>(bytes));
      codes = last;
    }
    // The blocks of the two halves. If the upper half lies past K, any scale will do.
    const float* absmax = w_.absmax + row * blocks_;
    const std::int64_t lower = (strip * kNf4Strip) >> shift_;
    const std::int64_t upper = std::min((strip * kNf4Strip + kNf4Strip / 2) >> shift_, blocks_ - 1);
    const __m512i values = Dot::Values(absmax[lower]);
    *low = Pairs(codes, values);
    *high = Pairs(codes + 16, upper == lower ? values : Dot::Values(absmax[upper]));
  }

 private:
  static __m512i Pairs(const std::uint8_t* codes, __m512i values) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    return _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi32(byte, 4), _mm512_slli_epi32(byte, 16)), values);
  }

  const Nf4Weight w_;
  const std::int64_t blocks_;
  const int shift_;
  const std::int64_t row_bytes_;
};

}  // namespace

LaunchResult MatmulNf4Avx512(const MatmulNf4Args& args, const Stream& stream) {
  if (args.x.dtype == DType::kF32) return MatmulNf4On<Fma<float>>(args, stream);
  if (HasBf16Dot() && args.x.rows > kMatmulNf4FewRows) {
    return PairProduct<Nf4Pairs>(args.x, Nf4Pairs(args.w), args.bias, args.y, stream).Run();
  }
  if (HasBf16Dot()) return MatmulNf4On<Dot>(args, stream);
  return MatmulNf4On<Fma<BF16>>(args, stream);
}

}  // namespace nibble::kernels
