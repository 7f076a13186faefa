#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DequantizeInt8Args {
  ConstMatrix codes;
  const float* scale = nullptr;
  Matrix out;
};

// out = rn_out(float(codes) * scale of the row).
//   codes  [N, K]   i8
//   scale  [N]      f32
//   out    [N, K]   f32 | bf16; overwritten
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: numerics.md, Decided 1. Golden: tests/golden/kernels.
absl::Status DequantizeInt8(const DequantizeInt8Args& args, const Stream& stream);

}  // namespace nibble::kernels
