// Inverse frequencies of the rotary embedding. Everything is computed in double and rounded once, so that the angles do
// not depend on how a machine's libm rounds floats.
#include <cmath>
#include <numbers>

#include "server/model/model_config.h"

namespace nibble::model {
namespace {

// Llama 3.1 (transformers modeling_rope_utils.py _compute_llama3_parameters): stretches wavelengths above
// low_wavelength by `factor`, keeps those below high_wavelength, and blends those between.
double Llama3(double inverse_frequency, const RopeConfig& rope) {
  const double positions = static_cast<double>(rope.original_max_positions);
  const double low_wavelength = positions / rope.low_freq_factor;
  const double high_wavelength = positions / rope.high_freq_factor;
  const double wavelength = 2.0 * std::numbers::pi / inverse_frequency;
  if (wavelength > low_wavelength) return inverse_frequency / rope.factor;
  if (wavelength < high_wavelength) return inverse_frequency;
  const double smooth =
      (positions / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * inverse_frequency / rope.factor + smooth * inverse_frequency;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const ModelConfig& config) {
  std::vector<float> out(static_cast<std::size_t>(config.head_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = 1.0 / std::pow(config.rope.theta, exponent);
    switch (config.rope.scaling) {
      case RopeConfig::Scaling::kNone: break;
      case RopeConfig::Scaling::kLinear: frequency /= config.rope.factor; break;
      case RopeConfig::Scaling::kLlama3: frequency = Llama3(frequency, config.rope); break;
    }
    out[i] = static_cast<float>(frequency);
  }
  return out;
}

}  // namespace nibble::model
