#include "server/trainer/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/dynamic_map.h"

namespace nibble::trainer {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // minimum elements per thread

// The factors of one step.
struct Factors {
  Factors(const AdamWConfig& config, std::int64_t step, double lr) {
    const double bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
    const double bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
    keep = static_cast<float>(1.0 - lr * config.weight_decay);
    beta2 = static_cast<float>(config.beta2);
    one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
    one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
    root_bias2 = static_cast<float>(std::sqrt(bias2));
    eps = static_cast<float>(config.eps);
    step_size = static_cast<float>(lr / bias1);
  }

  void Update(float g, float& m, float& v, float& value) const {
    m = m + (g - m) * one_minus_beta1;
    v = v * beta2 + (g * g) * one_minus_beta2;
    const float denominator = std::sqrt(v) / root_bias2 + eps;
    value = value * keep - step_size * (m / denominator);
  }

  float keep, beta2, one_minus_beta1, one_minus_beta2, root_bias2, eps, step_size;
};

// One block of an 8-bit moment: its codes, its absmax and their map.
struct MomentBlock {
  // least: of the codes of values other than 0.
  MomentBlock(const TensorRef& moment, std::int64_t index, const DynamicMap& of, std::uint8_t least)
      : codes(static_cast<std::uint8_t*>(moment.data) + index * moment.block),
        count(std::min(moment.block, moment.count - index * moment.block)),
        absmax(moment.scales[index]),
        map(of),
        least_code(least) {}

  void Read(float* values) const {
    for (std::int64_t i = 0; i < count; ++i) values[i] = map.Value(codes[i]) * absmax;
  }
  void Write(const float* values) {
    absmax = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) absmax = std::max(absmax, std::abs(values[i]));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t code = map.Nearest(absmax > 0.0f ? values[i] / absmax : 0.0f);
      codes[i] = values[i] != 0.0f ? std::max(code, least_code) : code;
    }
  }

  std::uint8_t* codes;
  std::int64_t count;
  float& absmax;
  const DynamicMap& map;
  const std::uint8_t least_code;
};

bool Has8BitMoments(const Moments& moments) {
  const TensorRef &m = moments.m.ref(), &v = moments.v.ref();
  return m.type == ElementType::kMoment8 && v.type == ElementType::kMoment8 && m.block == kMomentBlock &&
         v.block == kMomentBlock;
}

}  // namespace

absl::Status CheckAdamW(std::string_view name, const TensorRef& value, const TensorRef& grad, const Moments& moments) {
  const std::pair<const char*, const TensorRef*> parts[] = {{"values", &value},
                                                            {"gradients", &grad},
                                                            {"first moments", &moments.m.ref()},
                                                            {"second moments", &moments.v.ref()}};
  const bool moments8 = Has8BitMoments(moments);
  for (const auto& [part, tensor] : parts) {
    if (tensor->type == ElementType::kF32 || (moments8 && tensor->type == ElementType::kMoment8)) continue;
    return absl::UnimplementedError(
        base::StrCat("AdamW does not support ", Name(tensor->type), " ", part, " of ", name, " yet, wanted f32"));
  }
  return absl::OkStatus();
}

absl::Status AdamWStep(const AdamWConfig& config, std::int64_t step, double lr, const TensorRef& parameter,
                       const TensorRef& gradient, Moments& moments, const kernels::Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(CheckAdamW("a tensor", parameter, gradient, moments));
  const std::span<float> values = parameter.f32();
  const std::span<const float> gradients = gradient.f32();
  const Factors factors(config, step, lr);
  const TensorRef &m = moments.m.ref(), &v = moments.v.ref();
  if (m.type == ElementType::kF32) {
    const std::span<float> first = m.f32(), second = v.f32();
    stream.ParallelFor(parameter.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        factors.Update(gradients[i], first[i], second[i], values[i]);
      }
    });
    return absl::OkStatus();
  }
  stream.ParallelFor(m.num_scales(), kGrain / kMomentBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      MomentBlock first(m, block, DynamicMap::Signed(), 0);
      // A second moment that became 0 beside a first one that did not would make the next step thousands of learning
      // rates long.
      MomentBlock second(v, block, DynamicMap::Unsigned(), 1);
      float ms[kMomentBlock], vs[kMomentBlock];
      first.Read(ms);
      second.Read(vs);
      const auto at = static_cast<std::size_t>(block * kMomentBlock);
      for (std::size_t i = 0; i < static_cast<std::size_t>(first.count); ++i) {
        factors.Update(gradients[at + i], ms[i], vs[i], values[at + i]);
      }
      first.Write(ms);
      second.Write(vs);
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
