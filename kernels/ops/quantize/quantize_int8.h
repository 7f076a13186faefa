#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/quantize_int8_launch.h"

namespace nibble::kernels {

// Quantizes rows of x to integer codes, keeping up to max_outliers elements per row unquantized.
//   x    [M, K]   f32 | bf16, finite
//   how           bits, smallest absmax, one scale per row or one for all rows, how the scale is made, rounding
//                 (formats/int8.h); default: native int8, to nearest
//   out  [M, K]   codes, scale, outliers (formats/int8.h); overwritten, padding included. Outlier buffers may be null
//                 when max_outliers is 0; entries of a list past num_outliers are not written
// Requires K >= 1, 0 <= max_outliers <= 16. The threshold of outliers (formats/int8.h) uses mean|x|: the sum of |x|
// over 16 virtual lanes (lane l takes l, l + 16, ...), then a fixed tree, divided by K. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, options), Unimplemented (no kernel for device; on CUDA stochastic rounding, or
// more than 2^31 rows or columns), Internal (launch).
// Source: LLM.int8(), arXiv:2208.07339, one row at a time; docs/numerics.md 1. Golden: tests/golden/kernels.
absl::Status QuantizeInt8(const QuantizeInt8Args& args, const Stream& stream);

// The same, but counted as "quantize_activations": for rows of a running model, so that "quantize_int8" counts only
// weights and stays 0 while serving.
absl::Status QuantizeActivations(const QuantizeInt8Args& args, const Stream& stream);

}  // namespace nibble::kernels
