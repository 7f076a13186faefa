// A paged cache for tests: the pages of its sequences may lie anywhere in it.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/formats/kv_cache.h"
#include "tests/support/random.h"

namespace nibble::kernels {

class PagedCache {
 public:
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  // Takes pages from the cache in an order determined by `shuffle_seed`.
  PagedCache(DType dtype, std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t num_sequences,
             std::int64_t pages_per_sequence, std::uint64_t shuffle_seed)
      : num_sequences_(num_sequences), pages_per_sequence_(pages_per_sequence) {
    view_ = {.base = nullptr,
             .dtype = dtype,
             .num_pages = num_sequences * pages_per_sequence + 3,  // three pages belong to no sequence
             .num_layers = layers,
             .num_kv_heads = kv_heads,
             .head_dim = head_dim};
    // 0xff bytes are NaN in both dtypes, so that a read before a write shows in the results.
    bytes_.assign(static_cast<std::size_t>(view_.num_pages * view_.PageElements() * SizeOf(dtype)), 0xff);
    view_.base = bytes_.data();
    std::vector<std::int32_t> free(static_cast<std::size_t>(view_.num_pages));
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = free.size() - 1; i > 0; --i) {
      std::swap(free[i],
                free[static_cast<std::size_t>(support::UniformInt(shuffle_seed, i, static_cast<std::int64_t>(i) + 1))]);
    }
    tables_.assign(free.begin(), free.begin() + num_sequences * pages_per_sequence);
  }

  const KvCacheView& view() const { return view_; }
  std::vector<std::int32_t>& tables() { return tables_; }
  // Borrows both vectors.
  KvRows Rows(const std::vector<std::int32_t>& sequence, const std::vector<std::int32_t>& position) const {
    return {.num_rows = static_cast<std::int64_t>(sequence.size()),
            .sequence = sequence.data(),
            .position = position.data(),
            .page_tables = tables_.data(),
            .num_sequences = num_sequences_,
            .pages_per_sequence = pages_per_sequence_};
  }
  float Key(std::int64_t sequence, std::int64_t position, std::int64_t layer, std::int64_t head, std::int64_t i) const {
    return At(Slab(sequence, position, layer, head) + i * kKvPageTokens + position % kKvPageTokens);
  }
  float Value(std::int64_t sequence, std::int64_t position, std::int64_t layer, std::int64_t head,
              std::int64_t i) const {
    return At(Slab(sequence, position, layer, head) + (kKvPageTokens + position % kKvPageTokens) * view_.head_dim + i);
  }

 private:
  std::int64_t Slab(std::int64_t sequence, std::int64_t position, std::int64_t layer, std::int64_t head) const {
    const std::int32_t page =
        tables_[static_cast<std::size_t>(sequence * pages_per_sequence_ + position / kKvPageTokens)];
    return view_.SlabOffset(page, layer, head);
  }
  float At(std::int64_t element) const {
    return view_.dtype == DType::kF32 ? static_cast<const float*>(view_.base)[element]
                                      : ToFloat(static_cast<const BF16*>(view_.base)[element]);
  }

  std::int64_t num_sequences_;
  std::int64_t pages_per_sequence_;
  KvCacheView view_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::int32_t> tables_;
};

}  // namespace nibble::kernels
