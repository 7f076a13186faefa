// The fast path of rms_norm_backward over any Vec.
#pragma once
#include <algorithm>

#include "kernels/ops/norm/rms_norm_backward_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec, typename X, typename G, typename Y>
void RmsNormBackwardRows(const RmsNormBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = args.x.cols;
  for (std::int64_t row = begin; row < end; ++row) {
    const X* x = args.x.Row<X>(row);
    const G* g = args.grad_y.Row<G>(row);
    Y* out = args.grad_x.Row<Y>(row);
    Vec sum = Vec::Zero();
    ForEachVector<Vec>(RowSource<Vec, X>{x}, cols, [&](std::int64_t k, Vec v) {
      const int n = static_cast<int>(cols - k);
      const Vec gw = n >= Vec::kLanes ? Vec::Load(g + k) * Vec::Load(args.weight + k)
                                      : Vec::LoadPartial(g + k, n) * Vec::LoadPartial(args.weight + k, n);
      sum = Vec::Fma(gw, v, sum);
    });
    const float rstd = args.rstd[row];
    const Vec c = Vec::Set1(rstd * rstd * (sum.ReduceSum() / static_cast<float>(cols)));
    ForEachVector<Vec>(RowSource<Vec, X>{x}, cols, [&](std::int64_t k, Vec v) {
      const int n = static_cast<int>(cols - k);
      if (n >= Vec::kLanes) {
        const Vec gw = Vec::Load(g + k) * Vec::Load(args.weight + k);
        (Vec::Set1(rstd) * (gw - v * c)).Store(out + k);
      } else {
        const Vec gw = Vec::LoadPartial(g + k, n) * Vec::LoadPartial(args.weight + k, n);
        (Vec::Set1(rstd) * (gw - v * c)).StorePartial(out + k, n);
      }
    });
  }
}

template <typename Vec, typename X, typename G>
void RmsNormBackwardRange(const RmsNormBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.grad_x.dtype == DType::kF32) {
    RmsNormBackwardRows<Vec, X, G, float>(args, begin, end);
  } else {
    RmsNormBackwardRows<Vec, X, G, BF16>(args, begin, end);
  }
}

// Threads split the columns, never the rows of a column: the sums of 64 columns stay in registers over all rows.
template <typename Vec>
void RmsNormWeightGrad(const RmsNormBackwardArgs& args, const Stream& stream) {
  constexpr std::int64_t kVectors = 4;
  constexpr std::int64_t kColumns = kVectors * Vec::kLanes;
  const std::int64_t cols = args.x.cols;
  stream.ParallelFor((cols + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * kColumns; first < std::min(cols, end * kColumns); first += kColumns) {
      const std::int64_t vectors = std::min(kVectors, (cols - first + Vec::kLanes - 1) / Vec::kLanes);
      Vec sum[kVectors];
      for (Vec& v : sum) v = Vec::Zero();
      for (std::int64_t row = 0; row < args.x.rows; ++row) {
        const Vec rstd = Vec::Set1(args.rstd[row]);
        for (std::int64_t i = 0; i < vectors; ++i) {
          const std::int64_t k = first + i * Vec::kLanes;
          sum[i] = Vec::Fma(LoadLanes<Vec>(args.grad_y, row, k), LoadLanes<Vec>(args.x, row, k) * rstd, sum[i]);
        }
      }
      for (std::int64_t i = 0; i < vectors; ++i) {
        const std::int64_t k = first + i * Vec::kLanes;
        const std::int64_t n = std::min<std::int64_t>(Vec::kLanes, cols - k);
        n == Vec::kLanes ? sum[i].Store(args.grad_weight + k)
                         : sum[i].StorePartial(args.grad_weight + k, static_cast<int>(n));
      }
    }
  });
}

template <typename Vec>
LaunchResult RmsNormBackwardVec(const RmsNormBackwardArgs& args, const Stream& stream) {
  if (args.grad_weight != nullptr) RmsNormWeightGrad<Vec>(args, stream);  // first: grad_x may be grad_y
  stream.ParallelFor(args.x.rows, RowGrain(args.x.cols), [&](std::int64_t begin, std::int64_t end) {
    const bool wide_x = args.x.dtype == DType::kF32;
    const bool wide_g = args.grad_y.dtype == DType::kF32;
    if (wide_x && wide_g) RmsNormBackwardRange<Vec, float, float>(args, begin, end);
    if (wide_x && !wide_g) RmsNormBackwardRange<Vec, float, BF16>(args, begin, end);
    if (!wide_x && wide_g) RmsNormBackwardRange<Vec, BF16, float>(args, begin, end);
    if (!wide_x && !wide_g) RmsNormBackwardRange<Vec, BF16, BF16>(args, begin, end);
  });
  return {};
}

}  // namespace nibble::kernels
