#include "server/trainer/random_weights.h"

#include <torch/types.h>

#include <cmath>
#include <numbers>

#include "kernels/philox.h"

namespace nibble::trainer {
namespace {

constexpr double kDeviation = 0.02;  // Llama's and BitNet's initializer_range

}  // namespace

void DrawWeights(const torch::Tensor& tensor, std::uint64_t seed, std::uint64_t number, const kernels::Stream& stream) {
  float* values = tensor.data_ptr<float>();
  stream.ParallelFor(tensor.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto place = static_cast<std::uint64_t>(i);
      const double u = 1.0 - kernels::PhiloxUniform(seed, 2 * place, number);  // (0, 1]
      const double v = kernels::PhiloxUniform(seed, 2 * place + 1, number);
      values[i] = static_cast<float>(kDeviation * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
    }
  });
}

void DrawAdapter(const torch::Tensor& a, std::uint64_t seed, std::uint64_t number) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(a.size(1)));
  float* values = a.data_ptr<float>();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double uniform = kernels::PhiloxUniform(seed, static_cast<std::uint64_t>(i), number);
    values[i] = static_cast<float>((2.0 * uniform - 1.0) * bound);
  }
}

}  // namespace nibble::trainer
