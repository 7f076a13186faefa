// The fast path of ternarize_backward over any Vec.
#pragma once
#include "kernels/formats/ternary.h"
#include "kernels/ops/quantize/ternarize_backward_launch.h"
#include "kernels/ops/quantize/ternarize_vec.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

// 1 where the gradient passes, else 0.
template <typename Vec>
Vec TernaryMask(Ste ste, Vec u) {
  const Vec one = Vec::Set1(1.0f);
  if (ste == Ste::kIdentity) return one;
  const Vec reach = Vec::Abs(ste == Ste::kRoundOnly ? Vec::Rne(u) : u);
  return Vec::SelectLess(one, reach, Vec::Zero(), one);
}

template <typename Vec>
double TernaryScaleSum(const TernarizeBackwardArgs& args, std::int64_t row, Vec inverse) {
  typename Vec::Sum64 sum;
  for (std::int64_t k = 0; k < args.w.cols; k += Vec::kLanes) {  // lanes past K hold 0
    const Vec u = LoadLanes<Vec>(args.w, row, k) * inverse;
    const Vec code = Vec::Min(Vec::Max(Vec::Rne(u), Vec::Set1(-1.0f)), Vec::Set1(1.0f));
    sum.Add(LoadLanes<Vec>(args.grad_y, row, k) * (code - TernaryMask(args.ste, u) * u));
  }
  return sum.Reduce();
}

template <typename Vec>
LaunchResult TernarizeBackwardVec(const TernarizeBackwardArgs& args, const Stream& stream) {
  const std::int64_t rows = args.w.rows;
  const std::int64_t cols = args.w.cols;
  const Vec inverse = Vec::Set1(1.0f / args.scale);
  float slope = 0.0f;  // gradient of the loss with respect to mean|w|, per element
  if (args.scale_grad && args.ste != Ste::kIdentity && args.scale > kTernaryMinScale) {
    const double total = SumOverRows<Vec>(rows, cols, stream,
                                          [&](std::int64_t row) { return TernaryScaleSum<Vec>(args, row, inverse); });
    slope = static_cast<float>(total / (static_cast<double>(rows) * static_cast<double>(cols)));
  }
  stream.ParallelFor(rows, RowGrain(cols), [&](std::int64_t begin, std::int64_t end) {
    const Vec one = Vec::Set1(1.0f);
    const Vec minus = Vec::Set1(-1.0f);
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < cols; k += Vec::kLanes) {
        const Vec w = LoadLanes<Vec>(args.w, row, k);
        const Vec sign = Vec::SelectLess(Vec::Zero(), w, one, Vec::SelectLess(w, Vec::Zero(), minus, Vec::Zero()));
        const Vec grad =
            TernaryMask(args.ste, w * inverse) * LoadLanes<Vec>(args.grad_y, row, k) + sign * Vec::Set1(slope);
        StoreLanes(grad, args.grad_w, row, k);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
