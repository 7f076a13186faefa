// The body of silu_mul_backward.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/math.h"
#include "kernels/ops/elementwise/silu_mul_backward_launch.h"
#include "kernels/stream.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult SiluMulBackwardVec(const SiluMulBackwardArgs& args, const Stream& stream) {
  stream.ParallelFor(args.gate.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const Vec one = Vec::Set1(1.0f);
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.gate.cols; c += Vec::kLanes) {
        const Vec gate = LoadLanes<Vec>(args.gate, r, c);
        const Vec up = LoadLanes<Vec>(args.up, r, c);
        const Vec g = LoadLanes<Vec>(args.grad_y, r, c);
        const Vec s = Sigmoid(gate);
        StoreLanes(((g * up) * s) * (one + gate * (one - s)), args.grad_gate, r, c);
        StoreLanes((g * gate) * s, args.grad_up, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
