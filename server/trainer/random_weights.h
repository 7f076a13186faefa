// Random initial weights.
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "kernels/stream.h"

namespace nibble::trainer {

// Fills a contiguous f32 tensor with model::DrawWeights.
void DrawWeights(const torch::Tensor& tensor, std::uint64_t seed, std::uint64_t number, const kernels::Stream& stream);

// Fills A [r, K] of an adapter with U(-1/sqrt(K), 1/sqrt(K)). A value depends only on the seed, the number of its
// linear and its element.
void DrawAdapter(const torch::Tensor& a, std::uint64_t seed, std::uint64_t number);

}  // namespace nibble::trainer
