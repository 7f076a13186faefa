#pragma once
#include "absl/status/status.h"
#include "kernels/formats/nf4.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct MatmulNf4Args {
  ConstMatrix x;
  Nf4Weight w;
  const float* bias = nullptr;
  Matrix y;
};

// y = rn_y(x * dequantize(w)^T + bias), w rounded to x's dtype (the rule of dequantize_nf4), without materialising w:
// at most a tile of it exists at a time. Accumulates in f32. BEST_EFFORT: paths agree within a bound, not in bits.
//   x     [M, K]   f32 | bf16
//   w     [N, K]   formats/nf4.h
//   bias  [N]      f32, or null
//   y     [M, N]   f32 | bf16; overwritten; must not alias x
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: QLoRA arXiv:2305.14314 s.3. Golden: tests/golden/kernels (bitsandbytes weights, float64 product).
absl::Status MatmulNf4(const MatmulNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
