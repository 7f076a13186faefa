// Arguments of ternarize.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/formats/ternary.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct TernarizeArgs {
  ConstMatrix w;
  float* scale = nullptr;
  std::uint8_t* rows = nullptr;
  std::uint8_t* tiles = nullptr;
};

using TernarizeKernel = LaunchResult(const TernarizeArgs&, const Stream&);

}  // namespace nibble::kernels
