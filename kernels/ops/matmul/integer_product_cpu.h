// The plain loops of the integer products (matmul_int8, matmul_ternary): an exact sum, then the epilogue of all paths.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// y[row, n] = (float(sum over k of x_code(row, k) * w_code(n, k)) * x.scale) * w.scale, plus the row's outliers and the
// bias. `Args` is the argument type of either op.
template <typename Args, typename XCode, typename WCode>
LaunchResult IntegerProductCpu(const Args& args, const Stream& stream, XCode x_code, WCode w_code) {
  const QuantizedRows& x = args.x;
  const auto output = [&](std::int64_t row, std::int64_t n) {
    std::int32_t acc = 0;
    for (std::int64_t k = 0; k < args.w.cols; ++k) acc += x_code(row, k) * w_code(n, k);
    float y = static_cast<float>(acc) * x.scale[row] * args.w.scale[n];
    const std::int32_t outliers = x.num_outliers == nullptr ? 0 : x.num_outliers[row];
    if (outliers > 0) {
      float o = 0.0f;
      for (std::int32_t i = 0; i < outliers; ++i) {
        const std::int32_t j = x.outlier_index[row * kMaxOutliers + i];
        o = std::fma(x.outlier_value[row * kMaxOutliers + i], static_cast<float>(w_code(n, j)), o);
      }
      y = y + o * args.w.scale[n];
    }
    return args.bias == nullptr ? y : y + args.bias[n];
  };
  stream.ParallelFor(args.w.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float y = output(row, n);
        if (args.y.dtype == DType::kF32) {
          args.y.template Row<float>(row)[n] = y;
        } else {
          args.y.template Row<BF16>(row)[n] = ToBF16(y);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
