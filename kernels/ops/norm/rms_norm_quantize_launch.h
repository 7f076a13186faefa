// Arguments of rms_norm_quantize.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct RmsNormQuantizeArgs {
  ConstMatrix x;
  const float* weight = nullptr;
  float eps = 0;
  QuantizedRows out;
  int max_outliers = 0;
  QuantizeOptions how = {};
  float* rstd = nullptr;
};

using RmsNormQuantizeKernel = LaunchResult(const RmsNormQuantizeArgs&, const Stream&);

}  // namespace nibble::kernels
