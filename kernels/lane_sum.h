// The order in which the plain loops sum: 16 virtual lanes, lane l takes terms l, l + 16, ..., then a fixed tree
// (docs/numerics.md 9). The fast paths have Vec::ReduceSum and Vec::Sum64.
#pragma once
#include <cstdint>

namespace nibble::kernels {
namespace {

// The fixed tree: adds lane l + 8 to lane l, then lanes l + 4, l + 2 and l + 1.
template <typename T>
T TreeSum(T (&lanes)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// term(0) + ... + term(n - 1) in f32.
template <typename Term>
float LaneSum(std::int64_t n, Term term) {
  float lanes[16] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % 16] += term(i);
  return TreeSum(lanes);
}

// The same in f64.
template <typename Term>
double LaneSum64(std::int64_t n, Term term) {
  double lanes[16] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % 16] += term(i);
  return TreeSum(lanes);
}

}  // namespace
}  // namespace nibble::kernels
