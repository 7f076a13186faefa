#include "server/trainer/dynamic_map.h"

#include <algorithm>
#include <cmath>

namespace nibble::trainer {
namespace {

constexpr int kDecades = 7;  // powers of ten from 1e-6 to 1

}  // namespace

const DynamicMap& DynamicMap::Signed() {
  static const DynamicMap map(/*is_signed=*/true);
  return map;
}

const DynamicMap& DynamicMap::Unsigned() {
  static const DynamicMap map(/*is_signed=*/false);
  return map;
}

// Decade i has 2^i positive values and their negatives, or without a sign 2^(i + 1) values: the means of neighbours
// among equidistant points from 0.1 to 1, times 10^(i - 6). 0 and 1 are added.
DynamicMap::DynamicMap(bool is_signed) {
  std::vector<float> values = {0.0f, 1.0f};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int count = is_signed ? 1 << decade : 2 << decade;
    const auto factor = static_cast<float>(std::pow(10.0, decade - (kDecades - 1)));
    for (int i = 0; i < count; ++i) {
      const auto point = [&](int at) { return static_cast<float>(0.1 + 0.9 * at / count); };
      const float value = (point(i) + point(i + 1)) / 2.0f * factor;
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  std::copy(values.begin(), values.end(), values_.begin());
  for (std::size_t i = 0; i < midpoints_.size(); ++i) {
    // The midpoint is exact in f64. It is rounded down to f32: a float is above the exact midpoint if and only if it is
    // above the rounded one.
    const double exact = (static_cast<double>(values_[i]) + static_cast<double>(values_[i + 1])) / 2.0;
    auto rounded = static_cast<float>(exact);
    if (static_cast<double>(rounded) > exact) rounded = std::nextafter(rounded, -2.0f);
    midpoints_[i] = rounded;
  }
  first_.resize(std::size_t{1} << (32 - kKeyShift));
  for (std::size_t key = 0; key < first_.size(); ++key) {
    const bool negative = key >= first_.size() / 2;
    // The least float of a key: for a negative key the one with the largest magnitude.
    const auto bits = static_cast<std::uint32_t>(key << kKeyShift) | (negative ? (1u << kKeyShift) - 1 : 0u);
    const float least = std::bit_cast<float>(bits);
    // NaN and what lies below the map never occur; they get code 0.
    const auto above = std::lower_bound(midpoints_.begin(), midpoints_.end(), least);
    first_[key] = std::isnan(least) ? std::uint8_t{0} : static_cast<std::uint8_t>(above - midpoints_.begin());
  }
}

}  // namespace nibble::trainer
