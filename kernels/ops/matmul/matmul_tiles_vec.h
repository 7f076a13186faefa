// Shared by the fast paths of the products that read tiles of 16 outputs (matmul_int8, matmul_ternary,
// matmul_int8_weight): how outputs are split over threads, and the epilogue of a tile. A Path has kMaxRows, kMaxTiles
// (rows and tiles side by side) and
//   template <int Rows, int Tiles> void Block(const Args&, std::int64_t row, std::int64_t tile) const;
// which computes Rows rows from `row` by Tiles tiles from `tile` and ends in StoreTile or StoreOutputs.
#pragma once
#include <algorithm>

#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Number of outputs in a tile.
template <typename Args>
inline int OutputsOfTile(const Args& args, std::int64_t tile) {
  return static_cast<int>(std::min<std::int64_t>(kInt8TileRows, args.w.rows - tile * kInt8TileRows));
}

// 16 values of a vector over outputs; 0 past the last output.
template <typename Vec, typename Args>
inline Vec LoadOfTile(const Args& args, const float* vector, std::int64_t tile) {
  const float* p = vector + tile * kInt8TileRows;
  const int lanes = OutputsOfTile(args, tile);
  return lanes == kInt8TileRows ? Vec::Load(p) : Vec::LoadPartial(p, lanes);
}

// Adds the bias to the 16 outputs of a tile for one row, and writes them to y.
template <typename Vec, typename Args>
inline void StoreOutputs(const Args& args, std::int64_t row, std::int64_t tile, Vec y) {
  const std::int64_t n = tile * kInt8TileRows;
  const int lanes = OutputsOfTile(args, tile);
  const bool whole = lanes == kInt8TileRows;
  if (args.bias != nullptr) y = y + LoadOfTile<Vec>(args, args.bias, tile);
  if (args.y.dtype == DType::kF32) {
    float* out = args.y.template Row<float>(row) + n;
    whole ? y.Store(out) : y.StorePartial(out, lanes);
  } else {
    BF16* out = args.y.template Row<BF16>(row) + n;
    whole ? y.Store(out) : y.StorePartial(out, lanes);
  }
}

// The epilogue of rows of codes. acc holds the exact int32 sums, converted to f32. outlier_code(j) is w[tile * 16 +
// lane, j] in f32, for each lane.
template <typename Vec, typename Args, typename OutlierCode>
inline void StoreTile(const Args& args, std::int64_t row, std::int64_t tile, Vec acc, OutlierCode outlier_code) {
  const Vec s_col = LoadOfTile<Vec>(args, args.w.scale, tile);
  Vec y = acc * Vec::Set1(args.x.scale[row]) * s_col;
  const std::int32_t outliers = args.x.num_outliers == nullptr ? 0 : args.x.num_outliers[row];
  if (outliers > 0) {
    Vec o = Vec::Zero();
    const std::int32_t* index = args.x.outlier_index + row * kMaxOutliers;
    const float* value = args.x.outlier_value + row * kMaxOutliers;
    for (std::int32_t i = 0; i < outliers; ++i) o = Vec::Fma(Vec::Set1(value[i]), outlier_code(index[i]), o);
    y = y + o * s_col;
  }
  StoreOutputs(args, row, tile, y);
}

// Computes rows [begin, end) of Tiles tiles: blocks of Rows rows, then one smaller block for the rest.
template <int Rows, int Tiles, typename Path, typename Args>
inline void TileColumn(const Path& path, const Args& args, std::int64_t begin, std::int64_t end, std::int64_t tile) {
  std::int64_t row = begin;
  for (; row + Rows <= end; row += Rows) path.template Block<Rows, Tiles>(args, row, tile);
  if constexpr (Rows > 1) {
    if (row < end) TileColumn<Rows - 1, Tiles>(path, args, row, end, tile);
  }
}

// Computes rows [begin, end) of `tiles` tiles, at most Tiles: makes the number a template argument.
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
// Calls range(for_each) on each range of units that one thread takes; for_each(unit) calls unit(first row, end of the
// rows, first tile, number of tiles) for each unit of the range, in order.
template <typename Args, typename Range>
void ForEachTileUnit(const Args& args, std::int64_t max_tiles, std::int64_t chunk, const Stream& stream, Range range) {
  const std::int64_t num_tiles = (args.w.rows + kInt8TileRows - 1) / kInt8TileRows;
  const std::int64_t groups = (num_tiles + max_tiles - 1) / max_tiles;
  const std::int64_t chunks = (args.x.rows + chunk - 1) / chunk;
  stream.ParallelFor(groups * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    range([&](const auto& unit) {
      for (std::int64_t u = begin; u < end; ++u) {
        const std::int64_t tile = u / chunks * max_tiles;
        const std::int64_t row = u % chunks * chunk;
        unit(row, std::min(row + chunk, args.x.rows), tile, std::min(max_tiles, num_tiles - tile));
      }
    });
  });
}

template <typename Path, typename Args>
LaunchResult MatmulTiles(const Path& path, const Args& args, const Stream& stream) {
  ForEachTileUnit(args, Path::kMaxTiles, Path::kMaxRows * 16, stream, [&](const auto& for_each) {
    for_each([&](std::int64_t begin, std::int64_t end, std::int64_t tile, std::int64_t tiles) {
      TileGroup<Path::kMaxTiles>(path, args, begin, end, tile, tiles);
    });
  });
  return {};
}

}  // namespace nibble::kernels
