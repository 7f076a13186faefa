// The body of gated_mul.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/math.h"
#include "kernels/ops/elementwise/gated_mul_launch.h"
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/stream.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult GatedMulVec(const GatedMulArgs& args, const Stream& stream) {
  const auto for_each = [&](std::int64_t grain, const auto& product) {
    stream.ParallelFor(args.y.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < args.y.cols; c += Vec::kLanes) {
          StoreLanes(product(LoadLanes<Vec>(args.gate, r, c), LoadLanes<Vec>(args.up, r, c)), args.y, r, c);
        }
      }
    });
  };
  switch (args.activation) {
    case Activation::kSilu:  // the exponentials of one row are work enough for a thread
      for_each(1, [](Vec gate, Vec up) { return (gate / (Vec::Set1(1.0f) + Exp(Vec::Zero() - gate))) * up; });
      break;
    case Activation::kRelu2:
      for_each(RowGrain(args.y.cols), [](Vec gate, Vec up) {
        const Vec r = Vec::Max(gate, Vec::Zero());
        return (r * r) * up;
      });
      break;
  }
  return {};
}

}  // namespace nibble::kernels
