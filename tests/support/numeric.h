// Comparisons that report where and by how much values differ: exact bits, and bounds computed from norms and the unit
// roundoff.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"

namespace nibble::support {

inline constexpr double kEpsF32 = 0x1p-24;  // unit roundoff of round to nearest
inline constexpr double kEpsBF16 = 0x1p-8;

// Worst relative growth of n roundings: n u / (1 - n u) (Higham, Accuracy and Stability, 2nd ed., 3.1).
inline double Gamma(std::int64_t n, double unit = kEpsF32) {
  const double nu = static_cast<double>(n) * unit;
  return nu / (1.0 - nu);
}

// Bound on |computed - exact| of an inner product of n terms summed in f32 in any order, given the sum of |a_i b_i|,
// then rounded to out. Denormal results lose at most one smallest step of f32 (2^-149) per term, and one smallest step
// of bf16 (2^-133) in the end.
inline double DotBound(std::int64_t n, double sum_abs, kernels::DType out = kernels::DType::kF32) {
  const double f32 = Gamma(n + 1) * sum_abs + static_cast<double>(n) * 0x1p-149;
  const double unit = out == kernels::DType::kBF16 ? kEpsBF16 : kEpsF32;
  return f32 + unit * (sum_abs + f32) + 0x1p-133;
}

// Steps between two finite floats on the line of representable numbers; 0 for equal values (+0 and -0 are equal).
inline std::int64_t UlpDistance(float a, float b) {
  const auto line = [](float x) {
    const std::int32_t i = std::bit_cast<std::int32_t>(x);
    return i < 0 ? static_cast<std::int64_t>(INT32_MIN) - i : static_cast<std::int64_t>(i);
  };
  return std::abs(line(a) - line(b));
}

// First differing byte of two buffers, or success.
inline ::testing::AssertionResult BytesEqual(const void* got, const void* want, std::size_t n) {
  if (n == 0 || std::memcmp(got, want, n) == 0) return ::testing::AssertionSuccess();
  const auto* g = static_cast<const std::uint8_t*>(got);
  const auto* w = static_cast<const std::uint8_t*>(want);
  std::size_t first = 0;
  std::size_t differing = 0;
  for (std::size_t i = n; i-- > 0;) {
    if (g[i] != w[i]) {
      first = i;
      ++differing;
    }
  }
  return ::testing::AssertionFailure() << differing << " of " << n << " bytes differ, first at " << first << ": got "
                                       << int{g[first]} << ", wanted " << int{w[first]};
}

// |got - want| <= bound(i) for every i; names the element that exceeds its bound by the largest factor. NaN fails.
template <typename Bound>
::testing::AssertionResult AllWithin(const std::vector<float>& got, const std::vector<double>& want, Bound bound) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, wanted " << want.size();
  }
  double worst = 1.0;
  std::size_t worst_index = got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    const double allowed = bound(i);
    if (error <= allowed) continue;
    const double factor = std::isnan(error) || allowed == 0.0 ? HUGE_VAL : error / allowed;
    if (worst_index == got.size() || factor > worst) {
      worst = factor;
      worst_index = i;
    }
  }
  if (worst_index == got.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "worst at " << worst_index << ": got " << got[worst_index] << ", wanted "
                                       << want[worst_index] << ", bound " << bound(worst_index);
}

// Cosine of the angle between two vectors; 1 when both are zero.
inline double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return aa == 0 && bb == 0 ? 1.0 : ab / std::sqrt(aa * bb);
}

}  // namespace nibble::support
