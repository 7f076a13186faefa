// The numbers that int8 codes stand for: of rows (what an adapter reads beside a product of codes, in serving and in
// training) and of weights.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/formats/int8.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::model {

// out [T, K] f32: code * scale of the row; an outlier's own value.
void RowValues(const kernels::QuantizedRows& rows, const kernels::Matrix& out, const kernels::Stream& stream);
// out [M, K] f32 | bf16: code * scale of rows begin to begin + M - 1 of a weight. Errors: those of kernels::Embedding.
absl::Status WeightValues(const kernels::PackedInt8Weight& weight, std::int64_t begin, const kernels::Matrix& out,
                          const kernels::Stream& stream);

}  // namespace nibble::model
