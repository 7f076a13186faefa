// The fast path of matmul_dense over any Vec: lanes are outputs, so each output keeps its one chain over k; Rows x
// Panels chains run side by side to hide the latency of the multiply-add.
#pragma once
#include <algorithm>

#include "kernels/formats/dense.h"
#include "kernels/ops/matmul/matmul_dense_launch.h"

namespace nibble::kernels {

template <typename Vec, typename X, typename W, int Rows, int Panels>
inline void DenseBlock(const MatmulDenseArgs& args, std::int64_t row, std::int64_t panel) {
  const std::int64_t cols = args.w.cols;
  const W* w = static_cast<const W*>(args.w.panels) + panel * cols * kDensePanelRows;
  const X* x = args.x.Row<X>(row);
  Vec acc[Rows][Panels];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) acc[r][p] = Vec::Zero();
  }
  for (std::int64_t k = 0; k < cols; ++k) {
    Vec panels[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) panels[p] = Vec::Load(w + (p * cols + k) * kDensePanelRows);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec a = Vec::Set1(ToFloat(x[r * args.x.stride + k]));
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) acc[r][p] = Vec::Fma(a, panels[p], acc[r][p]);
    }
  }
  // Copy the sums to memory: otherwise the epilogue's loop would index acc, which then would be kept in memory during
  // the products too.
  alignas(64) float sums[Rows * Panels][kDensePanelRows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) acc[r][p].Store(sums[r * Panels + p]);
  }
  for (int i = 0; i < Rows * Panels; ++i) {
    const std::int64_t n = (panel + i % Panels) * kDensePanelRows;
    const int lanes = static_cast<int>(std::min(kDensePanelRows, args.w.rows - n));
    Vec y = Vec::Load(sums[i]);
    if (args.bias != nullptr) y = y + Vec::LoadPartial(args.bias + n, lanes);
    if (args.y.dtype == DType::kF32) {
      float* out = args.y.Row<float>(row + i / Panels) + n;
      if (args.accumulate) y = Vec::LoadPartial(out, lanes) + y;
      y.StorePartial(out, lanes);
    } else {
      y.StorePartial(args.y.Row<BF16>(row + i / Panels) + n, lanes);
    }
  }
}

// Number of panels that, times Rows, fills Sums accumulators: few rows use more panels, so that enough chains run.
template <int Rows, int Sums>
constexpr int PanelsFor() {
  return Rows * 4 <= Sums ? 4 : Rows * 2 <= Sums ? 2 : 1;
}

// Computes rows [begin, end) of panels [panel, panel_end): blocks of Rows rows, then smaller blocks for the rest.
template <typename Vec, typename X, typename W, int Rows, int Sums>
inline void DenseGroup(const MatmulDenseArgs& args, std::int64_t begin, std::int64_t end, std::int64_t panel,
                       std::int64_t panel_end) {
  constexpr int kPanels = PanelsFor<Rows, Sums>();
  const std::int64_t blocks = (end - begin) / Rows;
  std::int64_t p = panel;
  for (; p + kPanels <= panel_end; p += kPanels) {
    for (std::int64_t b = 0; b < blocks; ++b) DenseBlock<Vec, X, W, Rows, kPanels>(args, begin + b * Rows, p);
  }
  if constexpr (kPanels > 1) {
    for (; p < panel_end; ++p) {
      for (std::int64_t b = 0; b < blocks; ++b) DenseBlock<Vec, X, W, Rows, 1>(args, begin + b * Rows, p);
    }
  }
  if constexpr (Rows > 1) {
    const std::int64_t rest = begin + blocks * Rows;
    if (rest < end) DenseGroup<Vec, X, W, Rows - 1, Sums>(args, rest, end, panel, panel_end);
  }
}

inline constexpr std::int64_t kDenseGroup = 4;  // panels of a unit of work

template <typename Vec, typename X, typename W, int Rows, int Sums>
void DenseRange(const MatmulDenseArgs& args, std::int64_t begin, std::int64_t end, std::int64_t chunks,
                std::int64_t chunk) {
  const std::int64_t num_panels = (args.w.rows + kDensePanelRows - 1) / kDensePanelRows;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t panel = unit / chunks * kDenseGroup;
    const std::int64_t row = unit % chunks * chunk;
    DenseGroup<Vec, X, W, Rows, Sums>(args, row, std::min(row + chunk, args.x.rows), panel,
                                      std::min(panel + kDenseGroup, num_panels));
  }
}

// A unit of work is a group of panels and a chunk of rows. The chunks of one group are adjacent, as in MatmulTiles
// (matmul_tiles_vec.h).
template <typename Vec>
LaunchResult MatmulDenseVec(const MatmulDenseArgs& args, const Stream& stream) {
  constexpr int kRows = 6;                      // 6 rows by 4 panels with AVX-512, by 1 with AVX2
  constexpr int kSums = Vec::kVectors * 3 / 4;  // accumulators; the other registers are for the operands
  constexpr std::int64_t kChunk = kRows * 16;
  const std::int64_t groups = ((args.w.rows + kDensePanelRows - 1) / kDensePanelRows + kDenseGroup - 1) / kDenseGroup;
  const std::int64_t chunks = (args.x.rows + kChunk - 1) / kChunk;
  stream.ParallelFor(groups * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    const bool wide_x = args.x.dtype == DType::kF32;
    const bool wide_w = args.w.dtype == DType::kF32;
    if (wide_x && wide_w) DenseRange<Vec, float, float, kRows, kSums>(args, begin, end, chunks, kChunk);
    if (wide_x && !wide_w) DenseRange<Vec, float, BF16, kRows, kSums>(args, begin, end, chunks, kChunk);
    if (!wide_x && wide_w) DenseRange<Vec, BF16, float, kRows, kSums>(args, begin, end, chunks, kChunk);
    if (!wide_x && !wide_w) DenseRange<Vec, BF16, BF16, kRows, kSums>(args, begin, end, chunks, kChunk);
  });
  return {};
}

}  // namespace nibble::kernels
