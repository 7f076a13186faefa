#include "server/trainer/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/ops/elementwise/adamw.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/dynamic_map.h"
#include "server/trainer/float_values.h"

namespace nibble::trainer {
namespace {

kernels::AdamwFactors FactorsOf(const AdamWConfig& config, std::int64_t step, double lr) {
  const double bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
  const double bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  return {.keep = static_cast<float>(1.0 - lr * config.weight_decay),
          .beta2 = static_cast<float>(config.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - config.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - config.beta2),
          .root_bias2 = static_cast<float>(std::sqrt(bias2)),
          .eps = static_cast<float>(config.eps),
          .step_size = static_cast<float>(lr / bias1)};
}

// One block of an 8-bit moment: its codes, its absmax and their map.
struct MomentBlock {
  // least: smallest code that Write gives to a value other than 0.
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
    const bool is_moment = tensor == &moments.m.ref() || tensor == &moments.v.ref();
    if (tensor->type == ElementType::kF32 || (!is_moment && tensor->type == ElementType::kBF16) ||
        (moments8 && is_moment && tensor->type == ElementType::kMoment8)) {
      continue;
    }
    return absl::UnimplementedError(base::StrCat("AdamW does not support ", Name(tensor->type), " ", part, " of ", name,
                                                 " yet, wanted f32",
                                                 is_moment ? " or both moments in 8 bits" : " or bf16"));
  }
  return absl::OkStatus();
}

absl::Status AdamWStep(const AdamWConfig& config, std::int64_t step, double lr, const TensorRef& parameter,
                       const TensorRef& gradient, Moments& moments, const kernels::Stream& stream,
                       const StoreDraws& draws) {
  NIBBLE_RETURN_IF_ERROR(CheckAdamW("a tensor", parameter, gradient, moments));
  const kernels::AdamwFactors factors = FactorsOf(config, step, lr);
  const TensorRef &m = moments.m.ref(), &v = moments.v.ref();
  if (parameter.type == ElementType::kF32 && m.type == ElementType::kF32) {
    const auto vector = [&](const TensorRef& of) {
      const bool bf16 = of.type == ElementType::kBF16;
      return kernels::MakeMatrix(of.data, bf16 ? kernels::DType::kBF16 : kernels::DType::kF32, 1, of.count);
    };
    return kernels::Adamw({factors, vector(gradient), vector(m), vector(v), vector(parameter)}, stream);
  }
  WithElements(parameter, [&](auto* values) {
    WithElements(gradient, [&](const auto* gradients) {
      if (m.type == ElementType::kF32) {
        float *first = m.f32().data(), *second = v.f32().data();
        stream.ParallelFor(parameter.count, kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
          UpdateElements(values, begin, end, draws, step, [&](std::int64_t i, float& value) {
            kernels::AdamwElement(factors, kernels::ToFloat(gradients[i]), first[i], second[i], value);
          });
        });
        return;
      }
      stream.ParallelFor(m.num_scales(), kElementsPerThread / kMomentBlock, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
          MomentBlock first(m, block, DynamicMap::Signed(), /*least=*/0);
          // If a second moment were rounded to 0 and its first moment were not, the next step could be thousands of
          // learning rates long.
          MomentBlock second(v, block, DynamicMap::Unsigned(), /*least=*/1);
          float ms[kMomentBlock], vs[kMomentBlock];
          first.Read(ms);
          second.Read(vs);
          const std::int64_t at = block * kMomentBlock;
          UpdateElements(values, at, at + first.count, draws, step, [&](std::int64_t i, float& value) {
            kernels::AdamwElement(factors, kernels::ToFloat(gradients[i]), ms[i - at], vs[i - at], value);
          });
          first.Write(ms);
          second.Write(vs);
        }
      });
    });
  });
  return absl::OkStatus();
}

void Scale(const TensorRef& values, float factor, const kernels::Stream& stream) {
  WithElements(values, [&]<typename T>(T* elements) {
    stream.ParallelFor(values.count, kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        elements[i] = kernels::RoundTo<T>(kernels::ToFloat(elements[i]) * factor);
      }
    });
  });
}

double GlobalNorm(const std::vector<TensorRef>& gradients, const kernels::Stream& stream) {
  std::vector<double> sums(gradients.size(), 0.0);
  stream.ParallelFor(static_cast<std::int64_t>(gradients.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto t = static_cast<std::size_t>(begin); t < static_cast<std::size_t>(end); ++t) {
      WithElements(gradients[t], [&](const auto* elements) {
        for (std::int64_t i = 0; i < gradients[t].count; ++i) {
          const auto g = static_cast<double>(kernels::ToFloat(elements[i]));
          sums[t] += g * g;
        }
      });
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return std::sqrt(sum);
}

}  // namespace nibble::trainer
