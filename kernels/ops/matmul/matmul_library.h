// The BEST_EFFORT product, for f32 and bf16 layers of models without guaranteed bits. cuBLASLt computes it on CUDA; on
// the CPU it is Stream::library, which each program sets at start: oneDNN in nibbled, torch in nibble-trainer.
#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/ops/matmul/matmul_library_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// A CPU library's product: y = x * w^T, or y = x * w^T + y with `accumulate`. x [M, K], w [N, K] and y [M, N] are each
// f32 or bf16; M, N, K >= 1. Accumulates in f32. Thread-safe.
class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  virtual const char* kernel_name() const = 0;  // a constant; launches are counted under it
  virtual absl::Status Matmul(const ConstMatrix& x, const ConstMatrix& w, const Matrix& y, bool accumulate,
                              const Stream& stream) = 0;
};

// y = rn_y(x * w^T [+ y] [+ bias]) by the library of the stream's device, in the library's order of summation.
//   x     [M, K]   f32 | bf16
//   w     [N, K]   f32 | bf16, row-major as stored
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten, or added to when accumulate; must not alias x or w
// Accumulates in f32 (on CUDA without TF32). Without columns (K = 0) the product is 0. On the CPU a bf16 y is rounded
// before the bias is added and again after it; torch also rounds a product of two bf16 matrices before it is added to
// y. Stream-ordered on CUDA.
// Errors: InvalidArgument (shape, dtype), FailedPrecondition (a CPU stream has no library), Unimplemented (no CUDA in
// this build), errors of the library.
// Source: the library. Test: within a bound of the exact product that holds for every order of summation.
absl::Status MatmulLibrary(const MatmulLibraryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
