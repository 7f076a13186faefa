// The fast path of rms_norm_quantize over any Vec. The passes over a row follow each other, so that the row is read
// from memory only once (twice with how.per_tensor, which first finds the absmax of all rows).
#pragma once
#include "kernels/ops/norm/rms_norm_quantize_launch.h"
#include "kernels/ops/norm/rms_norm_vec.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult RmsNormQuantizeVec(const RmsNormQuantizeArgs& args, const Stream& stream) {
  const auto quantize = [&]<typename T>(T) {
    QuantizeAllRows<Vec>(
        [&](std::int64_t row) {
          const T* x = args.x.Row<T>(row);
          const float rstd = RowRstd<Vec, T>(x, args.x.cols, args.eps);
          if (args.rstd != nullptr) args.rstd[row] = rstd;
          return NormSource<Vec, T>{x, args.weight, Vec::Set1(rstd)};
        },
        args.max_outliers, args.how, args.out, stream);
  };
  args.x.dtype == DType::kF32 ? quantize(float{}) : quantize(BF16{});
  return {};
}

}  // namespace nibble::kernels
