// Plain loops: the reference that the fast paths must equal. formats/int8.h describes the layout of w.tiles.
#include <cmath>

#include "kernels/element.h"
#include "kernels/ops/matmul/matmul_int8_launch.h"

namespace nibble::kernels {
namespace {

float Output(const MatmulInt8Args& args, std::int64_t row, std::int64_t n) {
  const QuantizedRows& x = args.x;
  std::int32_t acc = 0;
  for (std::int64_t k = 0; k < args.w.cols; ++k) acc += x.codes[row * x.stride + k] * Int8Code(args.w, n, k);
  float y = static_cast<float>(acc) * x.scale[row] * args.w.scale[n];
  const std::int32_t outliers = x.num_outliers == nullptr ? 0 : x.num_outliers[row];
  if (outliers > 0) {
    float o = 0.0f;
    for (std::int64_t i = row * kMaxOutliers; i < row * kMaxOutliers + outliers; ++i) {
      o = std::fma(x.outlier_value[i], static_cast<float>(Int8Code(args.w, n, x.outlier_index[i])), o);
    }
    y = y + o * args.w.scale[n];
  }
  return args.bias == nullptr ? y : y + args.bias[n];
}

}  // namespace

LaunchResult MatmulInt8Cpu(const MatmulInt8Args& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < args.x.rows; ++row) {
      for (std::int64_t n = begin; n < end; ++n) SetElement(args.y, row, n, Output(args, row, n));
    }
  });
  return {};
}

}  // namespace nibble::kernels
