// Random initial weights of a model.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/stream.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// Draws from a normal distribution with mean 0 and standard deviation 0.02, by the Box-Muller method. A value depends
// only on the seed and the numbers of its tensor and element.
void DrawWeights(std::span<float> values, std::uint64_t seed, std::uint64_t number, const kernels::Stream& stream);

// The values of a new model's tensor: DrawWeights for a matrix, 1 for a norm, 0 for a bias. number: its place in
// RequiredTensors.
void DrawTensor(const TensorSpec& spec, std::span<float> values, std::uint64_t seed, std::uint64_t number,
                const kernels::Stream& stream);

}  // namespace nibble::model
