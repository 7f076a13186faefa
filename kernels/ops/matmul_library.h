// The BEST_EFFORT product: f32 and bf16 layers of models that carry no bit promise. Each program brings its library
// (oneDNN in nibbled, torch in nibble-trainer) at start, by Stream::library.
#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// y = x * w^T, optionally + y. x [M, K], w [N, K], y [M, N]: f32 | bf16, each its own; accumulates in f32.
class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  virtual const char* kernel_name() const = 0;  // a constant, under which its launches are counted
  virtual absl::Status Matmul(const ConstMatrix& x, const ConstMatrix& w, const Matrix& y, bool accumulate,
                              const Stream& stream) = 0;
};

struct MatmulLibraryArgs {
  ConstMatrix x;
  ConstMatrix w;
  const float* bias = nullptr;
  bool accumulate = false;
  Matrix y;
};

// y = rn_y(x * w^T [+ y] [+ bias]) by the stream's library, in whatever order that takes.
//   x     [M, K]   f32 | bf16
//   w     [N, K]   f32 | bf16, row-major as stored
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten, or added to when accumulate
// Errors: InvalidArgument (shape, dtype), FailedPrecondition (the stream has no library), what the library answers.
// Source: none of ours. Test: against matmul_dense within the bound of both orders.
absl::Status MatmulLibrary(const MatmulLibraryArgs& args, const Stream& stream);

}  // namespace nibble::kernels
