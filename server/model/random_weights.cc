#include "server/model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/philox.h"

namespace nibble::model {
namespace {

constexpr double kDeviation = 0.02;  // Llama's and BitNet's initializer_range

}  // namespace

void DrawWeights(std::span<float> values, std::uint64_t seed, std::uint64_t number, const kernels::Stream& stream) {
  constexpr std::int64_t kGrain = 1 << 16;  // minimum values per thread
  stream.ParallelFor(static_cast<std::int64_t>(values.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::uint64_t>(begin); i < static_cast<std::uint64_t>(end); ++i) {
      const double u = 1.0 - kernels::PhiloxUniform(seed, 2 * i, number);  // (0, 1]
      const double v = kernels::PhiloxUniform(seed, 2 * i + 1, number);
      values[i] = static_cast<float>(kDeviation * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
    }
  });
}

void DrawTensor(const TensorSpec& spec, std::span<float> values, std::uint64_t seed, std::uint64_t number,
                const kernels::Stream& stream) {
  if (spec.shape.size() == 2) return DrawWeights(values, seed, number, stream);
  std::fill(values.begin(), values.end(), spec.role == TensorRole::kBias ? 0.0f : 1.0f);
}

}  // namespace nibble::model
