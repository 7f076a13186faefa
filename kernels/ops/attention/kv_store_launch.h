// Arguments of kv_store.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/formats/kv_cache.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct KvStoreArgs {
  ConstMatrix k;
  ConstMatrix v;
  KvCacheView cache;
  std::int64_t layer = 0;
  KvRows rows;
};

using KvStoreKernel = LaunchResult(const KvStoreArgs& args, const Stream& stream);

}  // namespace nibble::kernels
