// Arguments of attention_backward.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct AttentionBackwardArgs {
  ConstMatrix q;
  ConstMatrix k;
  ConstMatrix v;
  ConstMatrix out;
  ConstMatrix grad_out;
  ConstMatrix logsumexp;
  const std::int64_t* segments = nullptr;
  std::int64_t num_segments = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  float scale = 0;
  Matrix grad_q;
  Matrix grad_k;
  Matrix grad_v;
};

using AttentionBackwardKernel = LaunchResult(const AttentionBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
