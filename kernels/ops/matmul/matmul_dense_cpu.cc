// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/element.h"
#include "kernels/ops/matmul/matmul_dense_launch.h"

namespace nibble::kernels {
namespace {

// Layout: kernels/formats/dense.h.
float Weight(const PackedDenseWeight& w, std::int64_t n, std::int64_t k) {
  const std::int64_t at = (n / kDensePanelRows * w.cols + k) * kDensePanelRows + n % kDensePanelRows;
  return w.dtype == DType::kF32 ? static_cast<const float*>(w.panels)[at]
                                : ToFloat(static_cast<const BF16*>(w.panels)[at]);
}

float Output(const MatmulDenseArgs& args, std::int64_t row, std::int64_t n) {
  float y = 0.0f;
  for (std::int64_t k = 0; k < args.w.cols; ++k) y = std::fma(Element(args.x, row, k), Weight(args.w, n, k), y);
  return args.bias == nullptr ? y : y + args.bias[n];
}

}  // namespace

LaunchResult MatmulDenseCpu(const MatmulDenseArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, kDensePanelRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < args.x.rows; ++row) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float y = Output(args, row, n);
        SetElement(args.y, row, n, args.accumulate ? Element(args.y, row, n) + y : y);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
