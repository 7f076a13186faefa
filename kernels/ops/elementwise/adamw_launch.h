// Arguments of adamw.h and the function type of its kernels, free of absl so that nvcc can read them; and the
// arithmetic of one element, which is shared with loops over parameters and moments in other types
// (server/trainer/adamw.h).
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// The factors of one step.
struct AdamwFactors {
  float keep = 1;  // 1 - lr * weight_decay
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  float root_bias2 = 1;  // sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
};

struct AdamwArgs {
  AdamwFactors factors;
  ConstMatrix grad;
  Matrix m;
  Matrix v;
  Matrix value;
};

// Minimum number of elements per thread; a multiple of the number of lanes of every Vec.
inline constexpr std::int64_t kAdamwBlock = 1 << 14;

using AdamwKernel = LaunchResult(const AdamwArgs& args, const Stream& stream);

// In an anonymous namespace for the reason that element.h gives.
namespace {

inline void AdamwElement(const AdamwFactors& f, float g, float& m, float& v, float& value) {
  m = m + (g - m) * f.one_minus_beta1;
  v = v * f.beta2 + (g * g) * f.one_minus_beta2;
  const float denominator = std::sqrt(v) / f.root_bias2 + f.eps;
  value = value * f.keep - f.step_size * (m / denominator);
}

}  // namespace
}  // namespace nibble::kernels
