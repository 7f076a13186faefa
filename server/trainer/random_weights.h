// Random initial weights.
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "kernels/stream.h"

namespace nibble::trainer {

// Fills a contiguous f32 tensor with N(0, 0.02), by the Box-Muller method. A value depends only on the seed and the
// numbers of its tensor and element.
void DrawWeights(const torch::Tensor& tensor, std::uint64_t seed, std::uint64_t number, const kernels::Stream& stream);

}  // namespace nibble::trainer
