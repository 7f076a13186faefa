// The body of adamw.h for any Vec (vec16_*.h): AdamwElement on sixteen elements at once.
#pragma once
#include "kernels/ops/elementwise/adamw_launch.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult AdamwVec(const AdamwArgs& args, const Stream& stream) {
  const AdamwFactors& f = args.factors;
  stream.ParallelFor(args.value.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const Vec keep = Vec::Set1(f.keep), beta2 = Vec::Set1(f.beta2), from_g = Vec::Set1(f.one_minus_beta1),
              from_g2 = Vec::Set1(f.one_minus_beta2), root_bias2 = Vec::Set1(f.root_bias2), eps = Vec::Set1(f.eps),
              step_size = Vec::Set1(f.step_size);
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.value.cols; c += Vec::kLanes) {
        const Vec g = LoadLanes<Vec>(args.grad, r, c);
        Vec m = LoadLanes<Vec>(args.m, r, c), v = LoadLanes<Vec>(args.v, r, c);
        m = m + (g - m) * from_g;
        v = v * beta2 + (g * g) * from_g2;
        const Vec denominator = Vec::Sqrt(v) / root_bias2 + eps;
        StoreLanes(m, args.m, r, c);
        StoreLanes(v, args.v, r, c);
        StoreLanes(LoadLanes<Vec>(args.value, r, c) * keep - step_size * (m / denominator), args.value, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
