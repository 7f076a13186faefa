// Arguments of dequantize_ternary.h and the function type of its kernels, free of absl so that nvcc can read them.
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
