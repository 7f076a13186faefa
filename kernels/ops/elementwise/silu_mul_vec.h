// The body of silu_mul.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/math.h"
#include "kernels/ops/elementwise/silu_mul_launch.h"
#include "kernels/stream.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult SiluMulVec(const SiluMulArgs& args, const Stream& stream) {
  stream.ParallelFor(args.y.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.y.cols; c += Vec::kLanes) {
        const Vec gate = LoadLanes<Vec>(args.gate, r, c);
        const Vec up = LoadLanes<Vec>(args.up, r, c);
        StoreLanes((gate / (Vec::Set1(1.0f) + Exp(Vec::Zero() - gate))) * up, args.y, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
