// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/element.h"
#include "kernels/formats/ternary.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/quantize/ternarize_backward_launch.h"

namespace nibble::kernels {
namespace {

// 1 where the gradient passes, else 0.
float Mask(Ste ste, float u) {
  switch (ste) {
    case Ste::kIdentity: return 1.0f;
    case Ste::kRoundOnly: return std::fabs(std::nearbyint(u)) > 1.0f ? 0.0f : 1.0f;
    case Ste::kClipped: return std::fabs(u) > 1.0f ? 0.0f : 1.0f;
  }
  return 0.0f;
}

double RowSum(const TernarizeBackwardArgs& args, std::int64_t row, float inverse) {
  return LaneSum64(args.w.cols, [&](std::int64_t k) {
    const float u = Element(args.w, row, k) * inverse;
    const float code = std::fmin(std::fmax(std::nearbyint(u), -1.0f), 1.0f);
    return static_cast<double>(Element(args.grad_y, row, k) * (code - Mask(args.ste, u) * u));
  });
}

}  // namespace

LaunchResult TernarizeBackwardCpu(const TernarizeBackwardArgs& args, const Stream& stream) {
  const std::int64_t rows = args.w.rows;
  const std::int64_t cols = args.w.cols;
  const float inverse = 1.0f / args.scale;
  float slope = 0.0f;  // gradient of the loss with respect to mean|w|, per element
  if (args.scale_grad && args.ste != Ste::kIdentity && args.scale > kTernaryMinScale) {
    const double total = LaneSum64(rows, [&](std::int64_t row) { return RowSum(args, row, inverse); });
    slope = static_cast<float>(total / (static_cast<double>(rows) * static_cast<double>(cols)));
  }
  stream.ParallelFor(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < cols; ++k) {
        const float w = Element(args.w, row, k);
        const float sign = w > 0.0f ? 1.0f : w < 0.0f ? -1.0f : 0.0f;
        const float grad = Mask(args.ste, w * inverse) * Element(args.grad_y, row, k) + sign * slope;
        SetElement(args.grad_w, row, k, grad);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
