// The order in which the plain loops sum in f64: 16 virtual lanes, lane l takes terms l, l + 16, ..., then a fixed
// tree. The fast paths have Vec::Sum64.
#pragma once
#include <cstdint>

namespace nibble::kernels {
namespace {

template <typename Term>
double LaneSum64(std::int64_t n, Term term) {
  double lanes[16] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % 16] += term(i);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace
}  // namespace nibble::kernels
