// The fast path of rms_norm over any Vec; rms_norm_quantize also uses NormSource.
#pragma once
#include <cmath>

#include "kernels/ops/norm/rms_norm_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"

namespace nibble::kernels {

template <typename Vec, typename T>
inline float RowRstd(const T* x, std::int64_t cols, float eps) {
  Vec sum = Vec::Zero();
  ForEachVector<Vec>(RowSource<Vec, T>{x}, cols, [&](std::int64_t, Vec v) { sum = Vec::Fma(v, v, sum); });
  return 1.0f / std::sqrt(sum.ReduceSum() / static_cast<float>(cols) + eps);
}

// (x * rstd) * weight, recomputed in each pass: the row and the weight are in cache, and no scratch is needed.
template <typename Vec, typename T>
struct NormSource {
  const T* x;
  const float* weight;
  Vec rstd;
  Vec Load(std::int64_t k) const { return Vec::Load(x + k) * rstd * Vec::Load(weight + k); }
  Vec LoadPartial(std::int64_t k, int n) const {
    return Vec::LoadPartial(x + k, n) * rstd * Vec::LoadPartial(weight + k, n);
  }
};

template <typename Vec, typename T, typename Y>
void RmsNormRows(const RmsNormArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = args.x.Row<T>(row);
    Y* y = args.y.Row<Y>(row);
    const float rstd = RowRstd<Vec, T>(x, args.x.cols, args.eps);
    if (args.rstd != nullptr) args.rstd[row] = rstd;
    const NormSource<Vec, T> source{x, args.weight, Vec::Set1(rstd)};
    ForEachVector<Vec>(source, args.x.cols, [&](std::int64_t k, Vec v) {
      if (k + Vec::kLanes <= args.x.cols) {
        v.Store(y + k);
      } else {
        v.StorePartial(y + k, static_cast<int>(args.x.cols - k));
      }
    });
  }
}

template <typename Vec>
LaunchResult RmsNormVec(const RmsNormArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, RowGrain(args.x.cols), [&](std::int64_t begin, std::int64_t end) {
    const bool wide_x = args.x.dtype == DType::kF32;
    const bool wide_y = args.y.dtype == DType::kF32;
    if (wide_x && wide_y) RmsNormRows<Vec, float, float>(args, begin, end);
    if (wide_x && !wide_y) RmsNormRows<Vec, float, BF16>(args, begin, end);
    if (!wide_x && wide_y) RmsNormRows<Vec, BF16, float>(args, begin, end);
    if (!wide_x && !wide_y) RmsNormRows<Vec, BF16, BF16>(args, begin, end);
  });
  return {};
}

}  // namespace nibble::kernels
