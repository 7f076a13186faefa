// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/math.h"
#include "kernels/ops/elementwise/gated_mul_backward_launch.h"

namespace nibble::kernels {
namespace {

struct Gradients {
  float gate, up;
};

Gradients GradientsOf(Activation activation, float gate, float up, float grad_y) {
  switch (activation) {
    case Activation::kSilu: {
      const float s = Sigmoid(gate);
      return {.gate = ((grad_y * up) * s) * (1.0f + gate * (1.0f - s)), .up = (grad_y * gate) * s};
    }
    case Activation::kRelu2: {
      const float r = gate > 0.0f ? gate : 0.0f;  // 0 for NaN
      return {.gate = (grad_y * up) * (r + r), .up = grad_y * (r * r)};
    }
  }
  return {};
}

}  // namespace

LaunchResult GatedMulBackwardCpu(const GatedMulBackwardArgs& args, const Stream& stream) {
  stream.ParallelFor(args.gate.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < args.gate.cols; ++k) {
        const Gradients grad = GradientsOf(args.activation, Element(args.gate, row, k), Element(args.up, row, k),
                                           Element(args.grad_y, row, k));
        SetElement(args.grad_gate, row, k, grad.gate);
        SetElement(args.grad_up, row, k, grad.up);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
