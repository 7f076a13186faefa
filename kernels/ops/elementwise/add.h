#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/add_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// x = rn_x(x + y), the residual connection; rn_x rounds to x's type (docs/numerics.md).
//   x, y  [M, K]   f32 | bf16; x overwritten
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
absl::Status Add(const AddArgs& args, const Stream& stream);

}  // namespace nibble::kernels
