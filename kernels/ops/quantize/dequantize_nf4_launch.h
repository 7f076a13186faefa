// Arguments of dequantize_nf4.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/nf4.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct DequantizeNf4Args {
  Nf4Weight w;
  Matrix out;
};

using DequantizeNf4Kernel = LaunchResult(const DequantizeNf4Args& args, const Stream& stream);

}  // namespace nibble::kernels
