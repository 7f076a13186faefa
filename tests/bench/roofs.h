// Measures this machine's maximum rates: bytes read from memory, int8 and f32 multiply-adds from registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/stream.h"
#include "kernels/weight_buffer.h"

namespace nibble::bench {

// Reads four streams side by side with prefetch, over memory that no cache holds: the fastest method found here.
// Returns a value that depends on every byte.
__attribute__((target("avx2"))) inline std::uint64_t ReadAll(const std::uint8_t* p, std::int64_t bytes) {
  constexpr int kStreams = 4;
  const std::int64_t part = bytes / kStreams;
  __m256i sum[2 * kStreams] = {};
  for (std::int64_t i = 0; i + 64 <= part; i += 64) {
    for (int s = 0; s < kStreams; ++s) {
      const std::uint8_t* line = p + s * part + i;
      sum[2 * s] = _mm256_xor_si256(sum[2 * s], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)));
      sum[2 * s + 1] =
          _mm256_xor_si256(sum[2 * s + 1], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 32)));
      _mm_prefetch(reinterpret_cast<const char*>(line + 1024), _MM_HINT_T1);
    }
  }
  for (int s = 1; s < 2 * kStreams; ++s) sum[0] = _mm256_xor_si256(sum[0], sum[s]);
  alignas(32) std::uint64_t out[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), sum[0]);
  return out[0] ^ out[1] ^ out[2] ^ out[3];
}

// Twelve chains of vpdpbusd, each step with 64 multiply-adds. Without VNNI: twelve chains of vpaddd, each step counted
// as 16 multiply-adds; all twelve add the result of one vpmaddwd.
__attribute__((target("avx512f,avx512vnni"))) inline std::uint64_t Int8Vnni(std::int64_t iterations) {
  __m512i acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (__m512i& v : acc) v = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512i& v : acc) v = _mm512_dpbusd_epi32(v, a, b);
  }
  for (const __m512i& v : acc) a = _mm512_add_epi32(a, v);
  alignas(64) std::uint64_t out[8];
  _mm512_store_si512(out, a);
  return out[0];
}
__attribute__((target("avx2"))) inline std::uint64_t Int8Avx2(std::int64_t iterations) {
  __m256i acc[12], a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(5);
  for (__m256i& v : acc) v = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
    const __m256i product = _mm256_madd_epi16(a, b);
    for (__m256i& v : acc) v = _mm256_add_epi32(v, product);
  }
  for (const __m256i& v : acc) a = _mm256_add_epi32(a, v);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(a, 0));
}

__attribute__((target("avx512f"))) inline std::uint64_t F32Avx512(std::int64_t iterations) {
  __m512 acc[12], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (__m512& v : acc) v = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512& v : acc) v = _mm512_fmadd_ps(a, b, v);
  }
  for (const __m512& v : acc) a = _mm512_add_ps(a, v);
  alignas(64) std::uint64_t out[8];
  _mm512_store_ps(out, a);
  return out[0];
}
__attribute__((target("avx2,fma"))) inline std::uint64_t F32Avx2(std::int64_t iterations) {
  __m256 acc[12], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (__m256& v : acc) v = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
    for (__m256& v : acc) v = _mm256_fmadd_ps(a, b, v);
  }
  for (const __m256& v : acc) a = _mm256_add_ps(a, v);
  return static_cast<std::uint64_t>(_mm256_cvtss_f32(a));
}

// Each method runs one burst on all threads of the stream and returns the work done (bytes or operations; a
// multiply-add counts as two).
class Roofs {
 public:
  explicit Roofs(const kernels::Stream& stream, int threads)
      : stream_(stream), threads_(threads), memory_(std::int64_t{512} << 20) {}
  double Read() {
    constexpr std::int64_t kShareBytes = 4 << 20;
    const std::int64_t shares = memory_.size() / kShareBytes;
    stream_.ParallelFor(shares, 1, [&](std::int64_t begin, std::int64_t end) {
      Keep(ReadAll(memory_.data() + begin * kShareBytes, (end - begin) * kShareBytes));
    });
    return static_cast<double>(memory_.size());
  }
  double Int8() {
    const bool vnni = stream_.isa == kernels::Isa::kAvx512;
    return Burst([vnni](std::int64_t n) { return vnni ? Int8Vnni(n) : Int8Avx2(n); }, 12.0 * 2 * (vnni ? 64 : 16));
  }
  double F32() {
    const bool wide = stream_.isa == kernels::Isa::kAvx512;
    return Burst([wide](std::int64_t n) { return wide ? F32Avx512(n) : F32Avx2(n); }, 12.0 * 2 * (wide ? 16 : 8));
  }

 private:
  template <typename F>
  double Burst(F f, double per_iteration) {
    constexpr std::int64_t kIterations = 100000;
    const std::int64_t shares = 8 * threads_;
    stream_.ParallelFor(shares, 1, [&](std::int64_t begin, std::int64_t end) { Keep(f((end - begin) * kIterations)); });
    return static_cast<double>(shares * kIterations) * per_iteration;
  }
  static void Keep(std::uint64_t value) { asm volatile("" : : "r"(value)); }

  kernels::Stream stream_;
  int threads_;
  kernels::WeightBuffer memory_;  // on the same kind of pages as weights
};

}  // namespace nibble::bench
