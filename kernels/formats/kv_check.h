// Argument checks of the paged KV cache (formats/kv_cache.h), shared by the ops that read and write the cache.
#pragma once
#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/formats/kv_cache.h"

namespace nibble::kernels {

inline absl::Status CheckKvCache(const char* op, const KvCacheView& cache, std::int64_t layer) {
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(cache.dtype == DType::kF32 || cache.dtype == DType::kBF16, op, "a cache of f32 or bf16"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(cache.base != nullptr && cache.num_pages > 0 && cache.num_layers > 0 &&
                                         cache.num_kv_heads > 0 && cache.head_dim > 0,
                                     op, "a cache with pages, layers, heads and a head size above 0"));
  if (layer < 0 || layer >= cache.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": layer is ", layer, ", wanted 0 to ", cache.num_layers - 1));
  }
  return absl::OkStatus();
}

// Checks that every row has a known sequence and a position with a page, and that rows of one sequence ascend.
// `all_pages` also checks the pages before the row's own (attention reads them).
inline absl::Status CheckKvRows(const char* op, const KvCacheView& cache, const KvRows& rows, bool all_pages) {
  if (rows.num_rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(CheckThat(
      rows.num_rows > 0 && rows.sequence != nullptr && rows.position != nullptr && rows.page_tables != nullptr, op,
      "rows with sequence, position and page_tables"));
  for (std::int64_t r = 0; r < rows.num_rows; ++r) {
    const std::int64_t sequence = rows.sequence[r];
    const std::int64_t position = rows.position[r];
    if (sequence < 0 || sequence >= rows.num_sequences) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": sequence[", r, "] is ", sequence, ", wanted 0 to ", rows.num_sequences - 1));
    }
    if (position < 0 || position >= rows.pages_per_sequence * kKvPageTokens) {
      return absl::InvalidArgumentError(absl::StrCat(op, ": position[", r, "] is ", position, ", wanted 0 to ",
                                                     rows.pages_per_sequence * kKvPageTokens - 1));
    }
    const bool continues = r > 0 && rows.sequence[r - 1] == sequence;
    if (continues && rows.position[r - 1] >= position) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": position[", r, "] is ", position, ", wanted above ", rows.position[r - 1]));
    }
    const std::int64_t last = position / kKvPageTokens;
    std::int64_t first = last;
    if (all_pages) first = continues ? rows.position[r - 1] / kKvPageTokens + 1 : 0;
    for (std::int64_t p = first; p <= last; ++p) {
      const std::int32_t page = rows.page_tables[sequence * rows.pages_per_sequence + p];
      if (page < 0 || page >= cache.num_pages) {
        return absl::InvalidArgumentError(absl::StrCat(op, ": page_tables[", sequence, "][", p, "] is ", page,
                                                       ", wanted 0 to ", cache.num_pages - 1));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::kernels
