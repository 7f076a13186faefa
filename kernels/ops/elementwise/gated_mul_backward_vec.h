// The body of gated_mul_backward.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/math.h"
#include "kernels/ops/elementwise/gated_mul_backward_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/stream.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult GatedMulBackwardVec(const GatedMulBackwardArgs& args, const Stream& stream) {
  struct Gradients {
    Vec gate, up;
  };
  const auto for_each = [&](std::int64_t grain, const auto& gradients) {
    stream.ParallelFor(args.gate.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < args.gate.cols; c += Vec::kLanes) {
          const Gradients found = gradients(LoadLanes<Vec>(args.gate, r, c), LoadLanes<Vec>(args.up, r, c),
                                            LoadLanes<Vec>(args.grad_y, r, c));
          StoreLanes(found.gate, args.grad_gate, r, c);
          StoreLanes(found.up, args.grad_up, r, c);
        }
      }
    });
  };
  switch (args.activation) {
    case Activation::kSilu:  // the exponentials of one row are work enough for a thread
      for_each(1, [](Vec gate, Vec up, Vec grad_y) {
        const Vec one = Vec::Set1(1.0f);
        const Vec s = Sigmoid(gate);
        return Gradients{((grad_y * up) * s) * (one + gate * (one - s)), (grad_y * gate) * s};
      });
      break;
    case Activation::kRelu2:
      for_each(RowGrain(args.gate.cols), [](Vec gate, Vec up, Vec grad_y) {
        const Vec r = Vec::Max(gate, Vec::Zero());
        return Gradients{(grad_y * up) * (r + r), grad_y * (r * r)};
      });
      break;
  }
  return {};
}

}  // namespace nibble::kernels
