// Shared by the fast paths of matmul_int8 and matmul_ternary: how outputs are split over threads, and the epilogue of a
// tile of 16 outputs. A Path has kMaxRows, kMaxTiles (rows and tiles side by side) and
//   template <int Rows, int Tiles> void Block(const Args&, std::int64_t row, std::int64_t tile) const;
// which computes Rows rows from `row` by Tiles tiles from `tile` and ends in StoreTile.
#pragma once
#include <algorithm>

#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Writes y for one row and the 16 outputs of a tile. acc holds their exact int32 sums, converted to f32.
// outlier_code(j) is w[tile * 16 + lane, j] in f32, for each lane.
template <typename Vec, typename Args, typename OutlierCode>
inline void StoreTile(const Args& args, std::int64_t row, std::int64_t tile, Vec acc, OutlierCode outlier_code) {
  const std::int64_t n = tile * kInt8TileRows;
  const int lanes = static_cast<int>(std::min<std::int64_t>(kInt8TileRows, args.w.rows - n));
  const bool whole = lanes == kInt8TileRows;
  const Vec s_col = whole ? Vec::Load(args.w.scale + n) : Vec::LoadPartial(args.w.scale + n, lanes);
  Vec y = acc * Vec::Set1(args.x.scale[row]) * s_col;
  const std::int32_t outliers = args.x.num_outliers == nullptr ? 0 : args.x.num_outliers[row];
  if (outliers > 0) {
    Vec o = Vec::Zero();
    const std::int32_t* index = args.x.outlier_index + row * kMaxOutliers;
    const float* value = args.x.outlier_value + row * kMaxOutliers;
    for (std::int32_t i = 0; i < outliers; ++i) o = Vec::Fma(Vec::Set1(value[i]), outlier_code(index[i]), o);
    y = y + o * s_col;
  }
  if (args.bias != nullptr) {
    y = y + (whole ? Vec::Load(args.bias + n) : Vec::LoadPartial(args.bias + n, lanes));
  }
  if (args.y.dtype == DType::kF32) {
    float* out = args.y.template Row<float>(row) + n;
    whole ? y.Store(out) : y.StorePartial(out, lanes);
  } else {
    BF16* out = args.y.template Row<BF16>(row) + n;
    whole ? y.Store(out) : y.StorePartial(out, lanes);
  }
}

template <int Rows, int Tiles, typename Path, typename Args>
inline void TileColumn(const Path& path, const Args& args, std::int64_t begin, std::int64_t end, std::int64_t tile) {
  std::int64_t row = begin;
  for (; row + Rows <= end; row += Rows) path.template Block<Rows, Tiles>(args, row, tile);
  if constexpr (Rows > 1) {
    if (row < end) TileColumn<Rows - 1, Tiles>(path, args, row, end, tile);
  }
}

template <int Tiles, typename Path, typename Args>
inline void TileGroup(const Path& path, const Args& args, std::int64_t begin, std::int64_t end, std::int64_t tile,
                      std::int64_t tiles) {
  if constexpr (Tiles > 1) {
    if (tiles < Tiles) return TileGroup<Tiles - 1>(path, args, begin, end, tile, tiles);
  }
  TileColumn<Path::kMaxRows, Tiles>(path, args, begin, end, tile);
}

// Units of work are (tile group, chunk of rows). The chunks of one group are adjacent, so its tiles stay in the
// second-level cache while the rows are processed. Few rows make one chunk, so a decode step reads every tile once.
template <typename Path, typename Args>
LaunchResult MatmulTiles(const Path& path, const Args& args, const Stream& stream) {
  constexpr std::int64_t kChunk = Path::kMaxRows * 16;
  const std::int64_t num_tiles = (args.w.rows + kInt8TileRows - 1) / kInt8TileRows;
  const std::int64_t groups = (num_tiles + Path::kMaxTiles - 1) / Path::kMaxTiles;
  const std::int64_t chunks = (args.x.rows + kChunk - 1) / kChunk;
  stream.ParallelFor(groups * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t tile = unit / chunks * Path::kMaxTiles;
      const std::int64_t row = unit % chunks * kChunk;
      TileGroup<Path::kMaxTiles>(path, args, row, std::min(row + kChunk, args.x.rows), tile,
                                 std::min<std::int64_t>(Path::kMaxTiles, num_tiles - tile));
    }
  });
  return {};
}

}  // namespace nibble::kernels
