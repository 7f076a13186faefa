// Plain loops, the only path of this op.
#include <algorithm>

#include "kernels/ops/attention/kv_store_launch.h"

namespace nibble::kernels {
namespace {

// Writes keys to column `slot` of [head_dim, kKvPageTokens], values to row `slot` of [kKvPageTokens, head_dim].
template <typename FromK, typename FromV, typename To>
void StoreRow(const FromK* k, const FromV* v, std::int64_t head_dim, std::int64_t slot, To* slab) {
  To* values = slab + head_dim * kKvPageTokens + slot * head_dim;
  for (std::int64_t i = 0; i < head_dim; ++i) slab[i * kKvPageTokens + slot] = RoundTo<To>(ToFloat(k[i]));
  for (std::int64_t i = 0; i < head_dim; ++i) values[i] = RoundTo<To>(ToFloat(v[i]));
}

// Stores one KV head of all rows, in order: a page's first position zeroes it before any other row writes to it.
template <typename FromK, typename FromV, typename To>
void StoreHead(const KvStoreArgs& args, std::int64_t head) {
  const KvCacheView& cache = args.cache;
  const std::int64_t d = cache.head_dim;
  for (std::int64_t r = 0; r < args.rows.num_rows; ++r) {
    const std::int64_t position = args.rows.position[r];
    const std::int64_t slot = position % kKvPageTokens;
    const std::int32_t page =
        args.rows.page_tables[args.rows.sequence[r] * args.rows.pages_per_sequence + position / kKvPageTokens];
    To* slab = static_cast<To*>(cache.base) + cache.SlabOffset(page, args.layer, head);
    if (slot == 0) std::fill(slab, slab + cache.SlabElements(), To{});
    StoreRow(args.k.Row<FromK>(r) + head * d, args.v.Row<FromV>(r) + head * d, d, slot, slab);
  }
}

template <typename FromK, typename FromV>
void StoreHeadFrom(const KvStoreArgs& args, std::int64_t head) {
  if (args.cache.dtype == DType::kF32) {
    StoreHead<FromK, FromV, float>(args, head);
  } else {
    StoreHead<FromK, FromV, BF16>(args, head);
  }
}

}  // namespace

LaunchResult KvStoreCpu(const KvStoreArgs& args, const Stream& stream) {
  stream.ParallelFor(args.cache.num_kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      if (args.k.dtype == DType::kF32) {
        args.v.dtype == DType::kF32 ? StoreHeadFrom<float, float>(args, head) : StoreHeadFrom<float, BF16>(args, head);
      } else {
        args.v.dtype == DType::kF32 ? StoreHeadFrom<BF16, float>(args, head) : StoreHeadFrom<BF16, BF16>(args, head);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
