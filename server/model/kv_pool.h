// The memory of a paged KV cache, and its list of free pages.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/kv_cache.h"
#include "server/model/model_config.h"

namespace nibble::model {

// One thread.
class KvPool {
 public:
  // Errors: ResourceExhausted (OUT_OF_DEVICE_MEMORY), InvalidArgument (no pages, or their size overflows).
  static absl::StatusOr<std::unique_ptr<KvPool>> Create(const ModelConfig& config, kernels::DType dtype,
                                                        std::int64_t num_pages);

  static std::int64_t PagesFor(std::int64_t tokens) {
    return (tokens + kernels::kKvPageTokens - 1) / kernels::kKvPageTokens;
  }
  static std::int64_t PageBytes(const ModelConfig& config, kernels::DType dtype);

  // Appends `count` page numbers to `pages`; returns false and takes none when fewer are free.
  bool Allocate(std::int64_t count, std::vector<std::int32_t>* pages);
  void Free(const std::vector<std::int32_t>& pages);
  // Copies the contents of the first `count` pages of `from` to the first `count` pages of `to`.
  void Copy(const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to, std::int64_t count);

  const kernels::KvCacheView& view() const { return view_; }
  std::int64_t num_pages() const { return view_.num_pages; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  KvPool() = default;
  struct FreeMemory {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, FreeMemory> memory_;
  kernels::KvCacheView view_;
  std::vector<std::int32_t> free_;
};

}  // namespace nibble::model
