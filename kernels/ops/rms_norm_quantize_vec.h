// The fast path of rms_norm_quantize over any Vec: a row is read from memory once and stays in the first-level cache.
#pragma once
#include "kernels/ops/rms_norm_quantize_launch.h"
#include "kernels/ops/rms_norm_vec.h"

namespace nibble::kernels {

template <typename Vec, typename T>
void RmsNormQuantizeRows(const RmsNormQuantizeArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = args.x.Row<T>(row);
    const float rstd = RowRstd<Vec, T>(x, args.x.cols, args.eps);
    QuantizeRow<Vec>(NormSource<Vec, T>{x, args.weight, Vec::Set1(rstd)}, args.x.cols, args.max_outliers, args.out,
                     row);
  }
}

template <typename Vec>
LaunchResult RmsNormQuantizeVec(const RmsNormQuantizeArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, RowGrain(args.x.cols), [&](std::int64_t begin, std::int64_t end) {
    if (args.x.dtype == DType::kF32) {
      RmsNormQuantizeRows<Vec, float>(args, begin, end);
    } else {
      RmsNormQuantizeRows<Vec, BF16>(args, begin, end);
    }
  });
  return {};
}

}  // namespace nibble::kernels
