// Loops over the elements of a tensor in f32 or bf16, which the optimizer's arithmetic reads and writes as f32.
// Included only by .cc files without torch, because torch defines another CHECK.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stochastic.h"
#include "server/base/log.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

// Calls body(pointer) with the elements: `float*` or `kernels::BF16*`.
template <typename Body>
void WithElements(const TensorRef& tensor, Body body) {
  CHECK(tensor.type == ElementType::kF32 || tensor.type == ElementType::kBF16);
  if (tensor.type == ElementType::kF32) {
    body(static_cast<float*>(tensor.data));
  } else {
    body(static_cast<kernels::BF16*>(tensor.data));
  }
}

// Calls update(i, value) for elements begin to end, and stores what it makes of `value`: in bf16 rounded
// stochastically, so that steps much smaller than the distance of two values of bf16 count on average. `step`: of the
// optimizer.
template <typename Update>
void UpdateElements(float* values, std::int64_t begin, std::int64_t end, const StoreDraws&, std::int64_t,
                    Update update) {
  for (std::int64_t i = begin; i < end; ++i) update(i, values[i]);
}
template <typename Update>
void UpdateElements(kernels::BF16* values, std::int64_t begin, std::int64_t end, const StoreDraws& draws,
                    std::int64_t step, Update update) {
  const std::uint64_t stream = static_cast<std::uint64_t>(step) << 32 | draws.tensor;
  std::uint16_t bits[kernels::kDrawsPerBlock];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t place = i % kernels::kDrawsPerBlock;
    if (i == begin || place == 0) {
      kernels::StochasticBits(draws.seed, static_cast<std::uint64_t>(i / kernels::kDrawsPerBlock), stream, bits);
    }
    float value = kernels::ToFloat(values[i]);
    update(i, value);
    values[i] = kernels::ToBF16Stochastically(value, bits[place]);
  }
}

}  // namespace nibble::trainer
