// The fast path of rms_norm_backward over any Vec.
#pragma once
#include "kernels/ops/int8_rows_vec.h"
#include "kernels/ops/rms_norm_backward_launch.h"

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

template <typename Vec>
LaunchResult RmsNormBackwardVec(const RmsNormBackwardArgs& args, const Stream& stream) {
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
