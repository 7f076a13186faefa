// Arguments of cross_entropy.h and the function type of its kernels, free of absl.
#pragma once
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct CrossEntropyArgs {
  Matrix logits;
  const std::int32_t* target = nullptr;
  float grad_scale = 1;
  float* loss = nullptr;
};

using CrossEntropyKernel = LaunchResult(const CrossEntropyArgs& args, const Stream& stream);

}  // namespace nibble::kernels
