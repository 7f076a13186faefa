#pragma once
#include "absl/status/status.h"
#include "kernels/ops/quantize/dequantize_nf4_launch.h"

namespace nibble::kernels {

// out = rn_out(book[code] * absmax), with the product in f32: the rule of every NF4 dequantization in this project.
//   w    [N, K]   formats/nf4.h
//   out  [N, K]   f32 | bf16; overwritten
// Same bits on every path.
// Errors: InvalidArgument (shape, dtype, block), Unimplemented (no kernel for device), Internal (launch).
// Source: bitsandbytes kDequantizeBlockwise. Golden: tests/golden/kernels (bitsandbytes).
absl::Status DequantizeNf4(const DequantizeNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
