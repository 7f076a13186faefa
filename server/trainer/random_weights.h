// Random initial weights of adapters.
#pragma once
#include <torch/types.h>

#include <cstdint>

namespace nibble::trainer {

// Fills A [r, K] of an adapter with U(-1/sqrt(K), 1/sqrt(K)). A value depends only on the seed, the number of its
// linear and its element.
void DrawAdapter(const torch::Tensor& a, std::uint64_t seed, std::uint64_t number);

}  // namespace nibble::trainer
