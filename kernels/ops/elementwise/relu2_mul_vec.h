// The body of relu2_mul.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/ops/elementwise/relu2_mul_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult Relu2MulVec(const Relu2MulArgs& args, const Stream& stream) {
  stream.ParallelFor(args.y.rows, RowGrain(args.y.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.y.cols; c += Vec::kLanes) {
        const Vec gate = Vec::Max(LoadLanes<Vec>(args.gate, r, c), Vec::Zero());
        StoreLanes((gate * gate) * LoadLanes<Vec>(args.up, r, c), args.y, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
