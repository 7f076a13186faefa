#include "server/trainer/adamw.h"

#include <cmath>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::trainer {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // minimum elements per thread

}  // namespace

absl::Status CheckAdamW(std::string_view name, const TensorRef& value, const TensorRef& grad, const Moments& moments) {
  const std::pair<const char*, const TensorRef*> parts[] = {{"values", &value},
                                                            {"gradients", &grad},
                                                            {"first moments", &moments.m.ref()},
                                                            {"second moments", &moments.v.ref()}};
  for (const auto& [part, tensor] : parts) {
    if (tensor->type == ElementType::kF32) continue;
    return absl::UnimplementedError(
        base::StrCat("AdamW does not support ", Name(tensor->type), " ", part, " of ", name, " yet, wanted f32"));
  }
  return absl::OkStatus();
}

absl::Status AdamWStep(const AdamWConfig& config, std::int64_t step, double lr, const TensorRef& parameter,
                       const TensorRef& gradient, Moments& moments, const kernels::Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(CheckAdamW("a tensor", parameter, gradient, moments));
  const std::span<float> values = parameter.f32(), first = moments.m.ref().f32(), second = moments.v.ref().f32();
  const std::span<const float> gradients = gradient.f32();
  const double bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
  const double bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  const auto keep = static_cast<float>(1.0 - lr * config.weight_decay);
  const auto beta2 = static_cast<float>(config.beta2);
  const auto one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
  const auto one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
  const auto root_bias2 = static_cast<float>(std::sqrt(bias2));
  const auto eps = static_cast<float>(config.eps);
  const auto step_size = static_cast<float>(lr / bias1);
  stream.ParallelFor(parameter.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const float g = gradients[i];
      float& m = first[i];
      float& v = second[i];
      m = m + (g - m) * one_minus_beta1;
      v = v * beta2 + (g * g) * one_minus_beta2;
      const float denominator = std::sqrt(v) / root_bias2 + eps;
      values[i] = values[i] * keep - step_size * (m / denominator);
    }
  });
  return absl::OkStatus();
}

void Scale(std::span<float> values, float factor, const kernels::Stream& stream) {
  stream.ParallelFor(static_cast<std::int64_t>(values.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) values[i] *= factor;
  });
}

double GlobalNorm(const std::vector<std::span<const float>>& gradients, const kernels::Stream& stream) {
  std::vector<double> sums(gradients.size(), 0.0);
  stream.ParallelFor(static_cast<std::int64_t>(gradients.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      for (const float g : gradients[i]) sums[i] += static_cast<double>(g) * static_cast<double>(g);
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return std::sqrt(sum);
}

}  // namespace nibble::trainer
