// The numbers that rows of codes stand for: what an adapter reads beside a product of codes, in serving and in
// training.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::model {

// out [T, K] f32: code * scale of the row; an outlier's own value.
void RowValues(const kernels::QuantizedRows& rows, const kernels::Matrix& out, const kernels::Stream& stream);

}  // namespace nibble::model
