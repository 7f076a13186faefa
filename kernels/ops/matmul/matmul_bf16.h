#pragma once
#include "absl/status/status.h"
#include "kernels/ops/matmul/matmul_bf16_launch.h"

namespace nibble::kernels {

// y = rn_y(x * w^T), accumulated in f32. The op exists because CPU libraries either widen both operands or round y to
// bf16. BEST_EFFORT: paths agree within a bound, not in bits, and a path may treat denormal operands as zero (vdpbf16ps
// does). Each output is one chain over K, independent of the batch and the threads.
//   x     [M, K]   bf16
//   w     [N, K]   bf16, row-major
//   y     [M, N]   f32 | bf16; overwritten; must not alias x or w
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), ResourceExhausted (scratch: a copy of x
// if K is not a multiple of 64; per thread, a panel of w and its sums), Internal (launch).
// Source: Intel SDM vol. 2, VDPBF16PS. Test: within a bound of the exact product that holds for every
// order of summation.
absl::Status MatmulBf16(const MatmulBf16Args& args, const Stream& stream);

// Whether the stream has a fast path; without one the op runs as plain loops.
bool HasFastMatmulBf16(const Stream& stream);

}  // namespace nibble::kernels
