// Arguments of rope.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct RopeArgs {
  Matrix x;
  std::int64_t num_heads = 0;
  const std::int32_t* position = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t table_positions = 0;
  bool backward = false;
};

using RopeKernel = LaunchResult(const RopeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
