#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/double_quantize_launch.h"

namespace nibble::kernels {

// int8 codes of n absmax values in blocks (formats/double_quant.h).
//   absmax  [n]              f32, finite
//   codes   [n]              i8; overwritten
//   factor  [ceil(n/block)]  f32; overwritten; 1 where 128 / max|z| is infinite, as for equal or nearly equal values
//   offset  [1]              f32, the mean, summed in f64 in order; overwritten (0 when n is 0)
//   block   values per block: a power of two from 32 to 4096
// Same bits on every path.
// Errors: InvalidArgument (null buffer, n < 0, block, absmax not finite), Unimplemented (no kernel for device).
// Source: torchao nf4_tensor.py double_quantize_scalers. Golden: tests/golden/kernels (torchao's formula in f32).
absl::Status DoubleQuantize(const DoubleQuantizeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
