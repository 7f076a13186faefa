#include "server/trainer/random_weights.h"

#include <torch/types.h>

#include <cmath>

#include "kernels/philox.h"

namespace nibble::trainer {

void DrawAdapter(const torch::Tensor& a, std::uint64_t seed, std::uint64_t number) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(a.size(1)));
  float* values = a.data_ptr<float>();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double uniform = kernels::PhiloxUniform(seed, static_cast<std::uint64_t>(i), number);
    values[i] = static_cast<float>((2.0 * uniform - 1.0) * bound);
  }
}

}  // namespace nibble::trainer
