#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/quantize_nf4_launch.h"

namespace nibble::kernels {

// NF4 codes of x in blocks along a row, scaled by absmax: code = number of thresholds (formats/nf4.h) that
// x * (1 / absmax) exceeds, in f32.
//   x       [N, K]             f32 | bf16, finite
//   codes   [N, ceil(K/2)]     u8, first element in the high nibble; overwritten; for odd K the last low nibble is 7
//   absmax  [N, ceil(K/block)] f32; overwritten
//   block   weights per block: a power of two from 32 to 4096
// A zero block stores absmax 0 and code 7. A block whose absmax is so small that 1 / absmax is infinite also gets code
// 7, but keeps its absmax. Same bits on every path. A block with an infinity or a NaN gets a non-finite absmax,
// whatever its other elements. The CPU checks for that and rejects x, naming the row and the block's first column; on
// CUDA, which returns before the value is known, the caller must check.
// Errors: InvalidArgument (shape, dtype, block, not finite), Unimplemented (no kernel for device), Internal (launch).
// Source: QLoRA arXiv:2305.14314 s.3; bitsandbytes kernels.cu. Golden: tests/golden/kernels (bitsandbytes).
absl::Status QuantizeNf4(const QuantizeNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
