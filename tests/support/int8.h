// Owned int8 rows and weights for tests: guarded buffers behind the views that kernels take.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/formats/int8.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::support {

class Int8Rows {
 public:
  Int8Rows(std::int64_t rows, std::int64_t cols, std::int64_t extra_stride = 0)
      : rows_(rows),
        cols_(cols),
        stride_(kernels::RoundUp(cols, 64) + extra_stride),
        codes_(rows * stride_),
        scale_(rows * 4),
        count_(rows * 4),
        index_(rows * kernels::kMaxOutliers * 4),
        value_(rows * kernels::kMaxOutliers * 4) {}

  kernels::QuantizedRows view() {
    return {codes_.As<std::int8_t>(),
            scale_.As<float>(),
            count_.As<std::int32_t>(),
            index_.As<std::int32_t>(),
            value_.As<float>(),
            rows_,
            cols_,
            stride_};
  }
  bool GuardsIntact() const {
    return codes_.GuardsIntact() && scale_.GuardsIntact() && count_.GuardsIntact() && index_.GuardsIntact() &&
           value_.GuardsIntact();
  }
  // Same bytes everywhere, including the unused elements of the outlier lists: no path may write those.
  ::testing::AssertionResult SameBytes(const Int8Rows& want) const {
    for (const auto& [mine, other] :
         {std::pair{&codes_, &want.codes_}, std::pair{&scale_, &want.scale_}, std::pair{&count_, &want.count_},
          std::pair{&index_, &want.index_}, std::pair{&value_, &want.value_}}) {
      if (auto equal = BytesEqual(mine->data(), other->data(), mine->size()); !equal) return equal;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  std::int64_t rows_, cols_, stride_;
  GuardedBytes codes_, scale_, count_, index_, value_;
};

// A packed weight made from row-major codes.
class Int8Weight {
 public:
  Int8Weight(const std::vector<std::int8_t>& codes, const std::vector<float>& scale, std::int64_t n, std::int64_t k)
      : rows_(n),
        cols_(k),
        tiles_(static_cast<std::size_t>(kernels::PackedInt8Bytes(n, k))),
        scale_(scale),
        row_sum_(static_cast<std::size_t>(kernels::RoundUp(n, kernels::kInt8TileRows))) {
    kernels::PackInt8Weight(codes.data(), n, k, tiles_.data(), row_sum_.data());
  }
  kernels::PackedInt8Weight view() const {
    return {tiles_.data(), scale_.data(), row_sum_.data(), rows_, cols_, kernels::Int8PaddedK(cols_)};
  }

 private:
  std::int64_t rows_, cols_;
  std::vector<std::int8_t> tiles_;
  std::vector<float> scale_;
  std::vector<std::int32_t> row_sum_;
};

// Rows with the corner cases of quantization, one kind per row, in this order: plain, huge outliers, more equal
// magnitudes than outliers allowed, zeros, denormals, tiny values, a tie at the threshold, a single element, ties of
// rounding.
inline std::vector<float> AwkwardRows(std::uint64_t seed, std::int64_t rows, std::int64_t cols) {
  std::vector<float> x = NormalVector(seed, rows * cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = x.data() + r * cols;
    const auto at = [&](std::int64_t i) { return UniformInt(seed + 77, static_cast<std::uint64_t>(r * 64 + i), cols); };
    switch (r % 9) {
      case 1:
        for (std::int64_t i = 0; i < std::min<std::int64_t>(5, cols); ++i)
          row[at(i)] = (i % 2 ? -1.0f : 1.0f) * 48000.0f;
        break;
      case 2:  // more equal magnitudes than outliers allowed: the lower index wins
        for (std::int64_t i = 0; i < cols; ++i) row[i] = 0.01f;
        for (std::int64_t i = 0; i < 24; ++i) row[at(i)] = i % 3 ? 9.0f : -9.0f;
        break;
      case 3:
        for (std::int64_t i = 0; i < cols; ++i) row[i] = 0.0f;
        break;
      case 4:
        for (std::int64_t i = 0; i < cols; ++i) row[i] = std::ldexp(row[i], -130);
        break;
      case 5:
        for (std::int64_t i = 0; i < cols; ++i) row[i] = std::ldexp(row[i], -44);
        break;
      case 6:  // from 6 columns on, the magnitudes have the sum cols: the 6 is exactly 6 * mean|x|, so no outlier
        for (std::int64_t i = 0; i < cols; ++i) row[i] = i == 0 ? 6.0f : i < 6 ? 0.0f : i % 2 ? -1.0f : 1.0f;
        break;
      case 7:
        for (std::int64_t i = 0; i < cols; ++i) row[i] = 0.0f;
        row[cols - 1] = -3.0f;
        break;
      case 8:  // ties of rounding: multiples of a half step when the largest is 127
        for (std::int64_t i = 0; i < cols; ++i) row[i] = 0.5f * static_cast<float>(i % 255 - 127);
        row[0] = 127.0f;
        break;
      default: break;
    }
  }
  return x;
}

}  // namespace nibble::support
