// Owned ternary weights and rows of wide codes for tests.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/formats/ternary.h"
#include "tests/support/random.h"

namespace nibble::support {

// Codes -1, 0, 1 with equal shares.
inline std::vector<std::int8_t> TernaryVector(std::uint64_t seed, std::int64_t n) {
  std::vector<std::int8_t> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int8_t>(UniformInt(seed, i, 3) - 1);
  return out;
}

// A packed weight made from row-major codes; `ok` is false if a value is not -1, 0 or 1.
class TernaryWeight {
 public:
  TernaryWeight(const std::vector<std::int8_t>& codes, const std::vector<float>& scale, std::int64_t n, std::int64_t k)
      : rows_(n), cols_(k), tiles_(static_cast<std::size_t>(kernels::PackedTernaryBytes(n, k))), scale_(scale) {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(n * kernels::TernaryRowBytes(k)));
    ok = kernels::TernaryCodesToRows(codes.data(), n, k, rows.data()) &&
         kernels::TernaryRowsToTiles(rows.data(), n, k, tiles_.data());
  }
  kernels::PackedTernaryWeight view() const {
    return {tiles_.data(), scale_.data(), rows_, cols_, kernels::TernaryPaddedK(cols_)};
  }

  bool ok = false;

 private:
  std::int64_t rows_, cols_;
  std::vector<std::uint8_t> tiles_;
  std::vector<float> scale_;
};

// Rows of 16-bit codes.
class WideRows {
 public:
  WideRows(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), stride_(kernels::RoundUp(cols, 64)), codes_(2 * rows * stride_), scale_(4 * rows) {}
  kernels::QuantizedRows view() {
    return {.scale = scale_.As<float>(),
            .rows = rows_,
            .cols = cols_,
            .stride = stride_,
            .wide_codes = codes_.As<std::int16_t>()};
  }
  bool GuardsIntact() const { return codes_.GuardsIntact() && scale_.GuardsIntact(); }
  const GuardedBytes& codes() const { return codes_; }

 private:
  std::int64_t rows_, cols_, stride_;
  GuardedBytes codes_, scale_;
};

}  // namespace nibble::support
