// The part of DoRA (arXiv:2402.09353) that training and serving share: y = f (W x + scaling B A x) + bias, where f = m
// / n has one value for each output: the trained magnitude over the norm of the row of W + scaling B A
// (docs/numerics.md 15).
#pragma once
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::model {

// m / n; 0 for a row of zeros, whose outputs are 0 whatever the factor.
inline float DoraFactor(float magnitude, float norm) { return norm > 0 ? magnitude / norm : 0.0f; }

// y [T, N] f32, in place: one multiplication per element, then an addition. bias: [N], or null.
void ApplyDora(const kernels::Matrix& y, const float* factor, const float* bias, const kernels::Stream& stream);

}  // namespace nibble::model
