// Included by server/convert/*.cc only.
#pragma once
#include <cstdint>

#include "kernels/lane_sum.h"

namespace nibble::convert {

// p[0] q[0] + ... + p[n - 1] q[n - 1], with the bits of kernels::LaneSum64. The compiler vectorizes the inner loop.
inline double Dot(const double* p, const double* q, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += p[i + l] * q[i + l];
  }
  for (std::int64_t l = 0; i + l < n; ++l) lanes[l] += p[i + l] * q[i + l];
  return kernels::TreeSum(lanes);
}

}  // namespace nibble::convert
