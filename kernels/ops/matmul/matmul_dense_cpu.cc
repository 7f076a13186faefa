// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/ops/matmul/matmul_dense_table.h"

namespace nibble::kernels {
namespace {

float Element(const void* data, DType dtype, std::int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[i] : ToFloat(static_cast<const BF16*>(data)[i]);
}

float Output(const MatmulDenseArgs& args, std::int64_t row, std::int64_t n) {
  float y = 0.0f;
  for (std::int64_t k = 0; k < args.w.cols; ++k) {
    const float w = Element(args.w.panels, args.w.dtype, (n / 16 * args.w.cols + k) * 16 + n % 16);
    y = std::fma(Element(args.x.data, args.x.dtype, row * args.x.stride + k), w, y);
  }
  return args.bias == nullptr ? y : y + args.bias[n];
}

}  // namespace

LaunchResult MatmulDenseCpu(const MatmulDenseArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < args.x.rows; ++row) {
      for (std::int64_t n = begin; n < end; ++n) {
        float y = Output(args, row, n);
        if (args.accumulate) y = args.y.Row<float>(row)[n] + y;
        if (args.y.dtype == DType::kF32) {
          args.y.Row<float>(row)[n] = y;
        } else {
          args.y.Row<BF16>(row)[n] = ToBF16(y);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
