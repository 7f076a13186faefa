#include "server/model/kv_pool.h"

#include <cstddef>
#include <cstring>
#include <numeric>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::model {

std::int64_t KvPool::PageBytes(const ModelConfig& config, kernels::DType dtype) {
  return config.num_layers * config.num_kv_heads * 2 * kernels::kKvPageTokens * config.head_dim *
         kernels::SizeOf(dtype);
}

absl::StatusOr<std::unique_ptr<KvPool>> KvPool::Create(const ModelConfig& config, kernels::DType dtype,
                                                       std::int64_t num_pages) {
  std::unique_ptr<KvPool> pool(new KvPool);
  std::int64_t bytes = 0;
  if (num_pages < 1 || __builtin_mul_overflow(num_pages, PageBytes(config, dtype), &bytes)) {
    return absl::InvalidArgumentError(
        base::StrCat("KV cache of ", num_pages, " pages: wanted 1 or more that fit in memory"));
  }
  pool->memory_.reset(std::aligned_alloc(64, static_cast<std::size_t>(bytes + 63) / 64 * 64));
  if (pool->memory_ == nullptr) {
    return base::WithReason(absl::ResourceExhaustedError(base::StrCat("KV cache: cannot allocate ", bytes, " bytes")),
                            "OUT_OF_DEVICE_MEMORY");
  }
  pool->view_ = {.base = pool->memory_.get(),
                 .dtype = dtype,
                 .num_pages = num_pages,
                 .num_layers = config.num_layers,
                 .num_kv_heads = config.num_kv_heads,
                 .head_dim = config.head_dim};
  pool->free_.resize(static_cast<std::size_t>(num_pages));
  std::iota(pool->free_.rbegin(), pool->free_.rend(), 0);  // page 0 is taken first
  return pool;
}

bool KvPool::Allocate(std::int64_t count, std::vector<std::int32_t>* pages) {
  if (count > free_pages()) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    pages->push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

// Reversed, so that Allocate takes the pages in the same order again.
void KvPool::Free(const std::vector<std::int32_t>& pages) { free_.insert(free_.end(), pages.rbegin(), pages.rend()); }

void KvPool::Copy(const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to, std::int64_t count) {
  const std::int64_t bytes = view_.PageElements() * kernels::SizeOf(view_.dtype);
  auto* base = static_cast<std::byte*>(view_.base);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::memcpy(base + to[i] * bytes, base + from[i] * bytes, static_cast<std::size_t>(bytes));
  }
}

}  // namespace nibble::model
