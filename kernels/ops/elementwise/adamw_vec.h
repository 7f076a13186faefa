// The body of adamw.h for any Vec (vec16_*.h): AdamwElement on sixteen elements at once.
#pragma once
#include <algorithm>

#include "kernels/ops/elementwise/adamw_launch.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult AdamwVec(const AdamwArgs& args, const Stream& stream) {
  const AdamwFactors& f = args.factors;
  const std::int64_t count = args.value.cols;
  stream.ParallelFor((count + kAdamwBlock - 1) / kAdamwBlock, 1, [&](std::int64_t first, std::int64_t last) {
    const Vec keep = Vec::Set1(f.keep), beta2 = Vec::Set1(f.beta2), from_g = Vec::Set1(f.one_minus_beta1),
              from_g2 = Vec::Set1(f.one_minus_beta2), root_bias2 = Vec::Set1(f.root_bias2), eps = Vec::Set1(f.eps),
              step_size = Vec::Set1(f.step_size);
    for (std::int64_t i = first * kAdamwBlock; i < std::min(count, last * kAdamwBlock); i += Vec::kLanes) {
      const Vec g = LoadLanes<Vec>(args.grad, 0, i);
      Vec m = LoadLanes<Vec>(args.m, 0, i), v = LoadLanes<Vec>(args.v, 0, i);
      m = m + (g - m) * from_g;
      v = v * beta2 + (g * g) * from_g2;
      const Vec denominator = Vec::Sqrt(v) / root_bias2 + eps;
      StoreLanes(m, args.m, 0, i);
      StoreLanes(v, args.v, 0, i);
      StoreLanes(LoadLanes<Vec>(args.value, 0, i) * keep - step_size * (m / denominator), args.value, 0, i);
    }
  });
  return {};
}

}  // namespace nibble::kernels
