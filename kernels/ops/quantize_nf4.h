#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct QuantizeNf4Args {
  ConstMatrix x;
  std::uint8_t* codes = nullptr;
  float* absmax = nullptr;
};

// NF4 codes of x by absmax blocks of 64 along a row: code = tree(x * (1 / absmax)) in f32 (formats/nf4.h).
//   x       [N, K]          f32 | bf16, finite
//   codes   [N, ceil(K/2)]  u8, first element in the high nibble; overwritten; an odd row's last low nibble is 7
//   absmax  [N, ceil(K/64)] f32; overwritten
// A zero block stores absmax 0 and code 7. Same bits on every path.
// Errors: InvalidArgument (shape, dtype), Unimplemented (no kernel for device), Internal (launch).
// Source: QLoRA arXiv:2305.14314 s.3; bitsandbytes kernels.cu. Golden: tests/golden/kernels (bitsandbytes).
absl::Status QuantizeNf4(const QuantizeNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
