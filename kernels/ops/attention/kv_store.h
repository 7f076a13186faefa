#pragma once
#include "absl/status/status.h"
#include "kernels/ops/attention/kv_store_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Writes keys (after rope) and values of a step into their pages, rounded to the cache's dtype. The rest of a page is
// zeroed when its first position is written, so that attention may read whole pages.
//   k, v   [T, KV * d]   f32 | bf16
//   cache, rows          formats/kv_cache.h
// Errors: InvalidArgument (shape, dtype, page or position out of range), Unimplemented, Internal.
// Source: paged attention, arXiv:2309.06180; layout ours. Test: read back through attention and directly.
absl::Status KvStore(const KvStoreArgs& args, const Stream& stream);

}  // namespace nibble::kernels
