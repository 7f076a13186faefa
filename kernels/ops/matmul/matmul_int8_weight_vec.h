// The fast path of matmul_int8_weight over any Vec: lanes are the 16 outputs of a tile, so each output keeps its one
// chain over k; Rows x Tiles chains run side by side to hide the latency of the multiply-add.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "kernels/formats/int8.h"
#include "kernels/ops/matmul/matmul_int8_weight_launch.h"
#include "kernels/ops/matmul/matmul_tiles_vec.h"

namespace nibble::kernels {

// Runs on a copy of rows of x in f32 with padded_k columns, padded with zeros.
template <typename Vec>
struct MatmulInt8WeightPath {
  // Accumulators: 24 with AVX-512, 6 with AVX2. The other registers are for the operands.
  static constexpr int kSums = Vec::kVectors * 3 / 4;
  static constexpr int kMaxRows = kSums > 12 ? 12 : kSums;
  static constexpr int kMaxTiles = 4;
  static constexpr std::int64_t kChunk = kMaxRows * (kSums > 12 ? 8 : 4);  // rows widened at a time: 96 or 24

  const float* x;  // [kChunk, padded_k]
  std::int64_t first_row;

  template <int Rows, int Tiles>
  void Block(const MatmulInt8WeightArgs& args, std::int64_t row, std::int64_t tile) const {
    if constexpr (Rows * Tiles > kSums) {
      constexpr int kHalf = Tiles / 2;
      Block<Rows, kHalf>(args, row, tile);
      Block<Rows, Tiles - kHalf>(args, row, tile + kHalf);
    } else {
      Chains<Rows, Tiles>(args, row, tile);
    }
  }

  template <int Rows, int Tiles>
  void Chains(const MatmulInt8WeightArgs& args, std::int64_t row, std::int64_t tile) const {
    const std::int64_t padded_k = args.w.padded_k;
    const std::int8_t* w = args.w.tiles + tile * padded_k * kInt8TileRows;
    const float* a = x + (row - first_row) * padded_k;
    Vec acc[Rows][Tiles];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) acc[r][t] = Vec::Zero();
    }
    const auto add = [&]<int kOf4>(std::int64_t k) {
      Vec codes[Tiles];
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        codes[t] = Vec::template FromQuads<kOf4>(w + (t * padded_k + k) * kInt8TileRows);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec value = Vec::Set1(a[r * padded_k + k + kOf4]);
#pragma GCC unroll 4
        for (int t = 0; t < Tiles; ++t) acc[r][t] = Vec::Fma(value, codes[t], acc[r][t]);
      }
    };
    // The padding adds 0 * 0, which would change only a sum of -0. No sum is -0: each begins at +0, and its terms are
    // multiples of the smallest denormal, so no result is rounded to zero.
    for (std::int64_t k = 0; k < args.w.cols; k += 4) {
      add.template operator()<0>(k);
      add.template operator()<1>(k);
      add.template operator()<2>(k);
      add.template operator()<3>(k);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        StoreOutputs(args, row + r, tile + t, acc[r][t] * LoadOfTile<Vec>(args, args.w.scale, tile + t));
      }
    }
  }
};

template <typename X>
void WidenRows(const ConstMatrix& x, std::int64_t begin, std::int64_t end, std::int64_t padded_k, float* out) {
  for (std::int64_t r = begin; r < end; ++r, out += padded_k) {
    const X* row = x.Row<X>(r);
    for (std::int64_t k = 0; k < x.cols; ++k) out[k] = ToFloat(row[k]);
    std::fill(out + x.cols, out + padded_k, 0.0f);
  }
}

// A thread widens a chunk of rows when it begins a unit (matmul_tiles_vec.h) of another chunk than before.
template <typename Vec>
LaunchResult MatmulInt8WeightVec(const MatmulInt8WeightArgs& args, const Stream& stream) {
  using Path = MatmulInt8WeightPath<Vec>;
  const std::int64_t scratch = std::min(Path::kChunk, args.x.rows) * args.w.padded_k;
  std::atomic<bool> out_of_memory{false};
  ForEachTileUnit(args, Path::kMaxTiles, Path::kChunk, stream, [&](const auto& for_each) {
    const std::unique_ptr<float[]> x(new (std::nothrow) float[static_cast<std::size_t>(scratch)]);
    if (x == nullptr) {
      out_of_memory = true;
      return;
    }
    std::int64_t widened = -1;
    for_each([&](std::int64_t begin, std::int64_t end, std::int64_t tile, std::int64_t tiles) {
      if (widened != begin) {
        if (args.x.dtype == DType::kF32) {
          WidenRows<float>(args.x, begin, end, args.w.padded_k, x.get());
        } else {
          WidenRows<BF16>(args.x, begin, end, args.w.padded_k, x.get());
        }
        widened = begin;
      }
      TileGroup<Path::kMaxTiles>(Path{x.get(), begin}, args, begin, end, tile, tiles);
    });
  });
  if (out_of_memory) return {LaunchCode::kResourceExhausted, "no memory for rows of x in f32"};
  return {};
}

}  // namespace nibble::kernels
