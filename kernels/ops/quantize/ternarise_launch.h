// Arguments and path type of ternarise: absl-free, for the paths themselves. The contract is in ternarise.h.
#pragma once
#include "kernels/formats/ternary.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct TernariseArgs {
  ConstMatrix w;
  float* scale = nullptr;
  std::uint8_t* rows = nullptr;
  std::uint8_t* tiles = nullptr;
};

using TernariseKernel = LaunchResult(const TernariseArgs&, const Stream&);

}  // namespace nibble::kernels
