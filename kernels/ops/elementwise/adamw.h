#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/adamw_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// One step of AdamW, element by element; every operation is rounded to f32:
// - m = m + (g - m) * (1 - beta1); v = v * beta2 + g^2 * (1 - beta2)
// - value = value * keep - step_size * (m / (sqrt(v) / root_bias2 + eps))
//   grad         [K]   f32 | bf16
//   m, v, value  [K]   f32, overwritten
// Same bits on every path and for any number of threads.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: arXiv:1711.05101, in the order of torch.optim.AdamW. Golden: tests/golden/trainer/adamw.txt.
absl::Status Adamw(const AdamwArgs& args, const Stream& stream);

}  // namespace nibble::kernels
