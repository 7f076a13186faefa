#include "kernels/formats/int8.h"

#include <algorithm>

namespace nibble::kernels {

void PackInt8Weight(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::int8_t* tiles,
                    std::int32_t* row_sum) {
  const std::int64_t padded_k = Int8PaddedK(k);
  const std::int64_t padded_n = RoundUp(n, kInt8TileRows);
  std::fill_n(tiles, padded_n * padded_k, std::int8_t{0});  // memset would get a null pointer without columns
  for (std::int64_t row = 0; row < padded_n; ++row) {
    // An index, not a pointer: without columns, `tiles` may be null.
    const std::int64_t first = row / kInt8TileRows * kInt8TileRows * padded_k + row % kInt8TileRows * 4;
    std::int32_t sum = 0;
    if (row < n) {
      const std::int8_t* source = codes + row * k;
      for (std::int64_t i = 0; i < k; ++i) {
        tiles[first + i / 4 * 64 + i % 4] = source[i];
        sum += source[i];
      }
    }
    row_sum[row] = sum;
  }
}

}  // namespace nibble::kernels
