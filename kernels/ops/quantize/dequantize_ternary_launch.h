// Arguments and path type of dequantize_ternary: absl-free, for the paths themselves. The contract is in
// dequantize_ternary.h.
#pragma once
#include "kernels/formats/ternary.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DequantizeTernaryArgs {
  PackedTernaryWeight w;  // scale null: the codes alone
  Matrix out;
};

using DequantizeTernaryKernel = LaunchResult(const DequantizeTernaryArgs&, const Stream&);

}  // namespace nibble::kernels
