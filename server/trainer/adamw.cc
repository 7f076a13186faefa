#include "server/trainer/adamw.h"

#include <cmath>

namespace nibble::trainer {

void AdamWStep(const AdamWConfig& config, std::int64_t step, double lr, std::span<float> parameter,
               std::span<const float> gradient, Moments& moments) {
  const double bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
  const double bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  const auto keep = static_cast<float>(1.0 - lr * config.weight_decay);
  const auto beta2 = static_cast<float>(config.beta2);
  const auto one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
  const auto one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
  const auto root_bias2 = static_cast<float>(std::sqrt(bias2));
  const auto eps = static_cast<float>(config.eps);
  const auto step_size = static_cast<float>(lr / bias1);
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    const float g = gradient[i];
    float& m = moments.m[i];
    float& v = moments.v[i];
    m = m + (g - m) * one_minus_beta1;
    v = v * beta2 + (g * g) * one_minus_beta2;
    const float denominator = std::sqrt(v) / root_bias2 + eps;
    parameter[i] = parameter[i] * keep - step_size * (m / denominator);
  }
}

double GlobalNorm(const std::vector<std::span<const float>>& gradients) {
  double sum = 0;
  for (const auto& gradient : gradients) {
    for (const float g : gradient) sum += static_cast<double>(g) * static_cast<double>(g);
  }
  return std::sqrt(sum);
}

}  // namespace nibble::trainer
