#include "server/trainer/optimizer.h"

#include <string>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/dynamic_map.h"
#include "server/trainer/float_values.h"

namespace nibble::trainer {
namespace {}  // namespace

Optimizer::Optimizer(const jobs::OptimConfig& config)
    : kind_(config.optimizer == "sgd"          ? Kind::kSgd
            : config.optimizer == "lion"       ? Kind::kLion
            : config.optimizer == "adamw_8bit" ? Kind::kAdamW8Bit
                                               : Kind::kAdamW),
      config_{config.beta1, config.beta2, config.eps, config.weight_decay} {}

Moments Optimizer::MakeMoments(std::int64_t count) const {
  const auto make = [&] {
    return kind_ == Kind::kAdamW8Bit && count >= kMin8BitElements
               ? TensorBuffer(ElementType::kMoment8, count, kMomentBlock)
               : TensorBuffer(ElementType::kF32, count);
  };
  const bool has_second = kind_ == Kind::kAdamW || kind_ == Kind::kAdamW8Bit;
  return {make(), has_second ? make() : TensorBuffer()};
}

absl::Status Optimizer::Check(std::string_view name, const TensorRef& value, const TensorRef& grad,
                              const Moments& moments) const {
  if (IsInt8Matrix(value)) {
    TensorRef widened;  // as Step changes it
    widened.count = value.count;
    return Check(name, widened, grad, moments);
  }
  if (kind_ == Kind::kAdamW || kind_ == Kind::kAdamW8Bit) return CheckAdamW(name, value, grad, moments);
  for (const TensorRef* tensor : {&value, &grad, &moments.m.ref()}) {
    const bool is_moment = tensor == &moments.m.ref();
    if (tensor->type == ElementType::kF32 || (tensor->type == ElementType::kBF16 && !is_moment)) continue;
    return absl::UnimplementedError(base::StrCat(kind_ == Kind::kSgd ? "sgd" : "lion", " does not support ",
                                                 Name(tensor->type), " tensors yet (", std::string(name), "), wanted ",
                                                 is_moment ? "f32" : "f32 or bf16"));
  }
  return absl::OkStatus();
}

absl::Status Optimizer::Step(std::int64_t step, double lr, const TensorRef& parameter, const TensorRef& gradient,
                             Moments& moments, const kernels::Stream& stream, const StoreDraws& draws,
                             Int8Buffers* buffers) const {
  if (IsInt8Matrix(parameter)) {
    Int8Buffers own;
    Int8Buffers& memory = buffers != nullptr ? *buffers : own;
    const std::span<float> values = FirstOf(memory.values, parameter.count);
    WidenInt8(parameter, values, stream);
    NIBBLE_RETURN_IF_ERROR(Step(step, lr, values, gradient, moments, stream));
    return StoreInt8(values, parameter, step, draws, stream, &memory);
  }
  if (kind_ == Kind::kAdamW || kind_ == Kind::kAdamW8Bit) {
    return AdamWStep(config_, step, lr, parameter, gradient, moments, stream, draws);
  }
  NIBBLE_RETURN_IF_ERROR(Check("a tensor", parameter, gradient, moments));
  float* m = moments.m.ref().f32().data();
  const auto keep = static_cast<float>(1.0 - lr * config_.weight_decay);
  const auto rate = static_cast<float>(lr);
  const auto beta1 = static_cast<float>(config_.beta1), beta2 = static_cast<float>(config_.beta2);
  const auto rest1 = static_cast<float>(1.0 - config_.beta1), rest2 = static_cast<float>(1.0 - config_.beta2);
  const auto sgd = [&](float g, std::int64_t i, float& p) {
    m[i] = beta1 * m[i] + g;
    p = p * keep - rate * m[i];
  };
  const auto lion = [&](float g, std::int64_t i, float& p) {
    const float direction = beta1 * m[i] + rest1 * g;
    const float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f;
    p = p * keep - rate * sign;
    m[i] = beta2 * m[i] + rest2 * g;
  };
  const auto run = [&](const auto& update) {
    WithElements(parameter, [&](auto* values) {
      WithElements(gradient, [&](const auto* gradients) {
        stream.ParallelFor(parameter.count, kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
          UpdateElements(values, begin, end, draws, step,
                         [&](std::int64_t i, float& value) { update(kernels::ToFloat(gradients[i]), i, value); });
        });
      });
    });
  };
  kind_ == Kind::kSgd ? run(sgd) : run(lion);
  return absl::OkStatus();
}

}  // namespace nibble::trainer
