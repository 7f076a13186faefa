// Arguments of attention.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/formats/kv_cache.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct AttentionArgs {
  ConstMatrix q;
  KvCacheView cache;
  std::int64_t layer = 0;
  KvRows rows;
  std::int64_t num_heads = 0;
  float scale = 0;
  Matrix out;
  float* logsumexp = nullptr;
};

using AttentionKernel = LaunchResult(const AttentionArgs& args, const Stream& stream);

}  // namespace nibble::kernels
