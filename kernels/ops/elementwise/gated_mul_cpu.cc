// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/math.h"
#include "kernels/ops/elementwise/gated_mul_launch.h"

namespace nibble::kernels {
namespace {

float Act(Activation activation, float gate) {
  switch (activation) {
    case Activation::kSilu: return gate / (1.0f + Exp(-gate));
    case Activation::kRelu2: {
      const float r = gate > 0.0f ? gate : 0.0f;  // 0 for NaN
      return r * r;
    }
  }
  return 0.0f;
}

}  // namespace

LaunchResult GatedMulCpu(const GatedMulArgs& args, const Stream& stream) {
  stream.ParallelFor(args.y.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < args.y.cols; ++k) {
        const float act = Act(args.activation, Element(args.gate, row, k));
        SetElement(args.y, row, k, act * Element(args.up, row, k));
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
