// Arguments of log_softmax_gather.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct LogSoftmaxGatherArgs {
  ConstMatrix logits;
  const std::int32_t* target = nullptr;
  float* logprob = nullptr;
  float* logsumexp = nullptr;
  std::int64_t top_n = 0;
  std::int32_t* top_id = nullptr;
  float* top_logprob = nullptr;
};

using LogSoftmaxGatherKernel = LaunchResult(const LogSoftmaxGatherArgs& args, const Stream& stream);

}  // namespace nibble::kernels
