// The body of relu2_mul_backward.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/ops/elementwise/relu2_mul_backward_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult Relu2MulBackwardVec(const Relu2MulBackwardArgs& args, const Stream& stream) {
  stream.ParallelFor(args.gate.rows, RowGrain(args.gate.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.gate.cols; c += Vec::kLanes) {
        const Vec gate = Vec::Max(LoadLanes<Vec>(args.gate, r, c), Vec::Zero());
        const Vec up = LoadLanes<Vec>(args.up, r, c);
        const Vec g = LoadLanes<Vec>(args.grad_y, r, c);
        StoreLanes((g * up) * (gate + gate), args.grad_gate, r, c);
        StoreLanes(g * (gate * gate), args.grad_up, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
