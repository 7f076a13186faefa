// The BEST_EFFORT product: f32 and bf16 layers of models without guaranteed bits. On the CPU each program sets its
// library (oneDNN in nibbled, torch in nibble-trainer) at start, as Stream::library; on CUDA it is cuBLASLt.
#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/ops/matmul_library_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// y = x * w^T, optionally + y. x [M, K], w [N, K], y [M, N]: f32 | bf16, independently. Accumulates in f32.
// M, N, K >= 1.
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
// once more if there is a bias, and by torch also if accumulate is set. Stream-ordered on CUDA.
// Errors: InvalidArgument (shape, dtype), FailedPrecondition (a CPU stream has no library), Unimplemented (no CUDA in
// this build), errors of the library.
// Source: none of ours. Test: against the exact product within the bound for every order of summation.
absl::Status MatmulLibrary(const MatmulLibraryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
