// The paged KV cache as attention reads it. A page holds kKvPageTokens positions of all layers and KV heads. Within a
// (layer, KV head) slab keys lie dimension-major, so that SIMD lanes are keys; values lie position-major, so that lanes
// are dimensions:
//   K [head_dim, kKvPageTokens]   then   V [kKvPageTokens, head_dim]
// Position p of a sequence is slot p % kKvPageTokens of page page_table[p / kKvPageTokens]: key blocks always begin at
// multiples of kKvPageTokens from position 0, whatever the chunking (docs/numerics.md 9).
#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace nibble::kernels {

inline constexpr std::int64_t kKvPageTokens = 32;

struct KvCacheView {
  void* base = nullptr;        // [num_pages, num_layers, num_kv_heads, 2, kKvPageTokens * head_dim]
  DType dtype = DType::kBF16;  // f32 or bf16
  std::int64_t num_pages = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;

  std::int64_t SlabElements() const { return 2 * kKvPageTokens * head_dim; }
  std::int64_t PageElements() const { return num_layers * num_kv_heads * SlabElements(); }
  // First element of the slab of (page, layer, kv_head), in elements from base.
  std::int64_t SlabOffset(std::int64_t page, std::int64_t layer, std::int64_t kv_head) const {
    return page * PageElements() + (layer * num_kv_heads + kv_head) * SlabElements();
  }
};

// Which sequence and position each row of a step belongs to. Rows of one sequence are adjacent and ascending.
struct KvRows {
  std::int64_t num_rows = 0;                  // T
  const std::int32_t* sequence = nullptr;     // [T], row of page_tables
  const std::int32_t* position = nullptr;     // [T], 0-based within the sequence
  const std::int32_t* page_tables = nullptr;  // [num_sequences, pages_per_sequence], page numbers
  std::int64_t num_sequences = 0;
  std::int64_t pages_per_sequence = 0;
};

}  // namespace nibble::kernels
