// y = x * w^T + bias over bf16 x and w by vdpbf16ps, meant for more than a few rows of x. Rows of w are copied to
// panels, pair by pair, as the instruction reads them: [K/2][columns] of two bf16 each, where a column is a row of w.
// Sixteen outputs of a row then share one vector of sums, and nothing is added across lanes. Each output is one chain
// of sums over the pairs in ascending order, for any number of rows and threads. Only AVX-512 paths include this file.
// Everything is in an anonymous namespace, so that the linker cannot share an instantiation with the path of another
// instruction set. A Weights class has
//   rows()                                  N
//   Load(row, block, low, high)             two vectors of sixteen pairs: elements [64 * block, 64 * block + 64) of a
//                                           row of w; past K any finite values, which the zeros of x cancel
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

#define NIBBLE_BF16_DOT __attribute__((target("avx512bf16")))

template <typename Weights>
class PairProduct {
 public:
  // x [M, K] bf16; y [M, N] f32 | bf16; bias [N] or null.
  PairProduct(const ConstMatrix& x, const Weights& w, const float* bias, const Matrix& y, const Stream& stream)
      : x_(x),
        w_(w),
        bias_(bias),
        y_(y),
        stream_(stream),
        m_(x.rows),
        n_(w.rows()),
        k_(x.cols),
        blocks_((k_ + kBlock - 1) / kBlock) {}

  LaunchResult Run() {
    if (k_ % kBlock != 0) {
      x_copy_ = Allocate<BF16>(m_ * blocks_ * kBlock);
      if (x_copy_ == nullptr) return {LaunchCode::kResourceExhausted, "no memory for the copy of x"};
      for (std::int64_t r = 0; r < m_; ++r) {
        BF16* out = x_copy_.get() + r * blocks_ * kBlock;
        std::fill(std::copy_n(x_.template Row<BF16>(r), k_, out), out + blocks_ * kBlock, BF16{});
      }
    }
    // The panel width that gives the busiest thread the fewest columns; on a tie, the wider one. Each choice keeps 24
    // vectors of sums in registers.
    const std::int64_t threads = stream_.pool == nullptr ? 1 : stream_.pool->num_threads();
    std::int64_t width_vectors = 0, fewest = 0;
    for (const std::int64_t vectors : {4, 3, 2}) {
      const std::int64_t panels = (n_ + 16 * vectors - 1) / (16 * vectors);
      const std::int64_t columns = (panels + threads - 1) / threads * 16 * vectors;
      if (width_vectors == 0 || columns < fewest) {
        width_vectors = vectors;
        fewest = columns;
      }
    }
    switch (width_vectors) {
      case 4: return Panels<6, 4>();
      case 3: return Panels<8, 3>();
      default: return Panels<12, 2>();
    }
  }

 private:
  static constexpr std::int64_t kBlock = 64;
  static constexpr std::int64_t kPairs = kBlock / 2;  // per block
  static constexpr std::int64_t kChunkBlocks = 16;    // per chunk of K: a panel of 64 columns then takes 128 KiB

  struct Free {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  template <typename T>
  using Buffer = std::unique_ptr<T[], Free>;
  template <typename T>
  static Buffer<T> Allocate(std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(std::max<std::int64_t>(elements, 1)) * sizeof(T);
    return Buffer<T>(static_cast<T*>(::operator new(bytes, std::align_val_t{64}, std::nothrow)));
  }

  // Transposes 16 x 16 pairs: row j becomes column j.
  static void Transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
      r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }

  // Writes blocks [first, first + count) of rows n to n + 15 of w into sixteen columns, from `out` on, of a panel of
  // `width` columns. Columns past N are zero.
  NIBBLE_BF16_DOT void Fill(std::int64_t n, std::int64_t first, std::int64_t count, std::int64_t width,
                            BF16* out) const {
    for (std::int64_t b = first; b < first + count; ++b) {
      __m512i low[16], high[16];
      for (int r = 0; r < 16; ++r) {
        low[r] = high[r] = _mm512_setzero_si512();
        if (n + r < n_) w_.Load(n + r, b, &low[r], &high[r]);
      }
      Transpose(low);
      Transpose(high);
      BF16* to = out + (b - first) * kPairs * width * 2;
      for (int p = 0; p < 16; ++p) {
        _mm512_store_si512(to + p * width * 2, low[p]);
        _mm512_store_si512(to + (p + 16) * width * 2, high[p]);
      }
    }
  }

  const BF16* X(std::int64_t row) const {
    return x_copy_ != nullptr ? x_copy_.get() + row * blocks_ * kBlock : x_.template Row<BF16>(row);
  }

  // Multiplies kRows rows of x from `row` on, at elements [first_k, first_k + 2 * pairs), by the panel w.
  // Writes the products to sums [kRows][16 * kVectors] or, if `add`, adds them to these sums.
  template <int kRows, int kVectors>
  NIBBLE_BF16_DOT void Multiply(std::int64_t row, std::int64_t first_k, std::int64_t pairs, const BF16* w, float* sums,
                                bool add) const {
    __m512 sum[kRows][kVectors];
    const BF16* x[kRows];
    for (int i = 0; i < kRows; ++i) {
      x[i] = X(row + i) + first_k;
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = add ? _mm512_load_ps(sums + (i * kVectors + j) * 16) : _mm512_setzero_ps();
      }
    }
    for (std::int64_t p = 0; p < pairs; ++p, w += kVectors * 32) {
      __m512i b[kVectors];
      for (int j = 0; j < kVectors; ++j) b[j] = _mm512_load_si512(w + j * 32);
      for (int i = 0; i < kRows; ++i) {
        std::int32_t pair;
        std::memcpy(&pair, x[i] + 2 * p, sizeof pair);
        const __m512i a = _mm512_set1_epi32(pair);
        for (int j = 0; j < kVectors; ++j) {
          sum[i][j] = _mm512_dpbf16_ps(sum[i][j], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b[j]));
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) _mm512_store_ps(sums + (i * kVectors + j) * 16, sum[i][j]);
    }
  }

  // Multiply for 1 <= rows <= kRows: the last tile may have fewer than kRows rows.
  template <int kRows, int kVectors>
  void MultiplyRows(int rows, std::int64_t row, std::int64_t first_k, std::int64_t pairs, const BF16* w, float* sums,
                    bool add) const {
    if constexpr (kRows > 1) {
      if (rows < kRows) return MultiplyRows<kRows - 1, kVectors>(rows, row, first_k, pairs, w, sums, add);
    }
    Multiply<kRows, kVectors>(row, first_k, pairs, w, sums, add);
  }

  // Writes sums plus bias to `columns` outputs of a row of y, from `column` on.
  NIBBLE_BF16_DOT void Store(const float* sums, std::int64_t row, std::int64_t column, std::int64_t columns) const {
    for (std::int64_t j = 0; j < columns; j += 16) {
      const auto mask = static_cast<__mmask16>(columns - j >= 16 ? 0xffff : (1 << (columns - j)) - 1);
      __m512 y = _mm512_load_ps(sums + j);
      if (bias_ != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, bias_ + column + j));
      if (y_.dtype == DType::kF32) {
        _mm512_mask_storeu_ps(y_.template Row<float>(row) + column + j, mask, y);
        continue;
      }
      const __m256i narrow = Vec16Avx512::Narrow(y);
      _mm256_mask_storeu_epi16(y_.template Row<BF16>(row) + column + j, mask, narrow);
    }
  }

  // Computes y in panels of 16 * kVectors columns and tiles of kRows rows.
  template <int kRows, int kVectors>
  LaunchResult Panels() {
    constexpr std::int64_t kWidth = kVectors * 16;
    const std::int64_t chunk = std::min(blocks_, kChunkBlocks);
    const std::int64_t tiles = (m_ + kRows - 1) / kRows;
    std::atomic<bool> out_of_memory{false};
    stream_.ParallelFor(n_, kWidth, [&](std::int64_t begin, std::int64_t end) {
      const Buffer<BF16> w = Allocate<BF16>(chunk * kBlock * kWidth);
      // With several chunks, the sums of every tile are kept until the next chunk. With one chunk, the tiles reuse one
      // buffer.
      const Buffer<float> sums = Allocate<float>((blocks_ > chunk ? tiles : 1) * kRows * kWidth);
      if (w == nullptr || sums == nullptr) {
        out_of_memory = true;
        return;
      }
      for (std::int64_t n = begin; n < end; n += kWidth) {
        for (std::int64_t b = 0; b < std::max<std::int64_t>(blocks_, 1); b += kChunkBlocks) {
          const std::int64_t count = std::min(chunk, blocks_ - b);
          for (int j = 0; j < kVectors; ++j) Fill(n + 16 * j, b, count, kWidth, w.get() + j * 32);
          for (std::int64_t t = 0; t < tiles; ++t) {
            const std::int64_t row = t * kRows;
            const int rows = static_cast<int>(std::min<std::int64_t>(kRows, m_ - row));
            float* tile = sums.get() + (blocks_ > chunk ? t : 0) * kRows * kWidth;
            MultiplyRows<kRows, kVectors>(rows, row, b * kBlock, count * kPairs, w.get(), tile, b > 0);
            if (b + count < blocks_) continue;  // more chunks follow
            for (int i = 0; i < rows; ++i) Store(tile + i * kWidth, row + i, n, std::min(kWidth, end - n));
          }
        }
      }
    });
    if (out_of_memory) return {LaunchCode::kResourceExhausted, "no memory for a panel of w or its sums"};
    return {};
  }

  const ConstMatrix x_;
  const Weights w_;
  const float* const bias_;
  const Matrix y_;
  const Stream& stream_;
  const std::int64_t m_, n_, k_, blocks_;
  Buffer<BF16> x_copy_;
};

}  // namespace
}  // namespace nibble::kernels
