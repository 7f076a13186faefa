// Row-wise int8: q = clamp(rne(x * (1 / s)), -127, 127) with s = max(absmax, 1e-12) / 127 in f32, one s per row; the
// stored s includes this minimum of absmax (docs/numerics.md 1). Nibble never quantizes to -128.
#pragma once
#include <cstdint>

namespace nibble::kernels {

inline constexpr float kInt8MinAbsmax = 1e-12f;
inline constexpr float kInt8MaxCode = 127.0f;
// Served activations: elements with |x| > kOutlierRatio * mean|x| become outliers: at most max_outliers per row, the
// largest magnitudes first, ties to the lower index (docs/numerics.md 1).
inline constexpr float kOutlierRatio = 6.0f;
inline constexpr int kMaxOutliers = 16;
inline constexpr int kDefaultOutliers = 8;

// Stochastic rounding of v = x * (1 / s): floor(v), or floor(v) + 1 with probability v - floor(v) to within 2^-16.
// Integers stay as they are. The draw of an element depends only on seed, stream, and the element's row and column
// (stochastic.h).
struct StochasticRounding {
  bool enabled = false;  // false: to nearest, ties to even
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // keeps the draws of different tensors and steps apart
};

// How a row's scale s and the factor of its elements follow from a = max(absmax, min_absmax).
enum class RowScaling {
  kNative,      // s = a / max_code, factor 1 / s
  kReciprocal,  // factor max_code * (1 / a), s = 1 / factor: transformers' BitNet (integrations/bitnet.py, ActQuant)
};

// How rows become codes: q = clamp(rne(x * factor), -max_code, max_code), with max_code = 2^(bits - 1) - 1. The
// defaults are native int8; BitNet uses kBitNetMinAbsmax (formats/ternary.h).
struct QuantizeOptions {
  float min_absmax = kInt8MinAbsmax;
  int bits = 8;                        // 4, 8 or 16; 16 writes wide_codes
  bool per_tensor = false;             // one scale from the absmax of all rows, written for each row; no outliers
  StochasticRounding stochastic = {};  // replaces rne
  RowScaling scaling = RowScaling::kNative;
};
constexpr float MaxCode(int bits) { return static_cast<float>((1 << (bits - 1)) - 1); }

// Rows of activations as the integer products read them. Borrowed buffers.
//   codes          [M, stride]  i8; columns K..stride-1 hold 0; stride % 64 == 0. An outlier's own code is 0
//   scale          [M]          f32
//   num_outliers   [M]          i32, 0..max_outliers
//   outlier_index  [M, 16]      i32, ascending within a row
//   outlier_value  [M, 16]      f32, the original element
struct QuantizedRows {
  std::int8_t* codes = nullptr;
  float* scale = nullptr;
  std::int32_t* num_outliers = nullptr;
  std::int32_t* outlier_index = nullptr;
  float* outlier_value = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // K
  std::int64_t stride = 0;
  std::int16_t* wide_codes = nullptr;  // [M, stride], used instead of codes for 16 bits
};

// A weight [N, K] as the int8 product reads it: tiles of 16 outputs by 4 k, so that one 64-byte load feeds 16 lanes of
// a 4-way dot product. Byte ((n / 16) * padded_k / 4 + k / 4) * 64 + (n % 16) * 4 + k % 4 holds w[n, k]; elements
// outside [N, K] are 0.
struct PackedInt8Weight {
  const std::int8_t* tiles = nullptr;  // [ceil(N/16), padded_k/4, 16, 4]
  const float* scale = nullptr;        // [N]
  // [ceil(N/16)*16], sum over k of w[n, k]. The AVX-512 path adds 128 to activation codes, because vpdpbusd reads them
  // as unsigned, and subtracts 128 * row_sum.
  const std::int32_t* row_sum = nullptr;
  std::int64_t rows = 0;      // N
  std::int64_t cols = 0;      // K
  std::int64_t padded_k = 0;  // K rounded up to a multiple of 64
};

// w[n, k] for 0 <= n < N and 0 <= k < K.
constexpr std::int8_t Int8Code(const PackedInt8Weight& w, std::int64_t n, std::int64_t k) {
  return w.tiles[(n / 16 * (w.padded_k / 4) + k / 4) * 64 + n % 16 * 4 + k % 4];
}

inline constexpr std::int64_t kInt8TileRows = 16;
// kInt8MaxCols * 127 * 128 < 2^31, so an int32 sum over K cannot overflow. A weight from a foreign artifact may
// hold -128.
inline constexpr std::int64_t kInt8MaxCols = 132104;
constexpr std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t Int8PaddedK(std::int64_t k) { return RoundUp(k, 64); }
constexpr std::int64_t PackedInt8Bytes(std::int64_t n, std::int64_t k) {
  return RoundUp(n, kInt8TileRows) * Int8PaddedK(k);
}

// codes [N, K] row-major -> tiles [PackedInt8Bytes(N, K)] and row_sum [RoundUp(N, 16)]. Only reorders; no rounding.
void PackInt8Weight(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::int8_t* tiles,
                    std::int32_t* row_sum);

}  // namespace nibble::kernels
