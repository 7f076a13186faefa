// Finds a counter for which the generator of kernels/ops/sample returns about a given uniform number u in [0, 1), so
// that a test can choose u.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/philox.h"

namespace nibble::support {

class UniformTable {
 public:
  explicit UniformTable(std::uint64_t seed) : seed_(seed) {
    constexpr std::uint64_t kCounters = 1u << 18;
    for (std::uint64_t i = 0; i < kCounters; ++i) by_u_.emplace_back(kernels::PhiloxUniform(seed, i), i);
    std::sort(by_u_.begin(), by_u_.end());
  }

  std::uint64_t seed() const { return seed_; }
  // The counter of the smallest number in the table at or above `u`, or of the largest number if all are below `u`.
  // With 2^18 counters the numbers are 4e-6 apart on average, and up to about 6e-5.
  std::uint64_t CounterAt(double u) const {
    const auto at = std::lower_bound(by_u_.begin(), by_u_.end(), std::pair<double, std::uint64_t>(u, 0));
    return at == by_u_.end() ? by_u_.back().second : at->second;
  }

 private:
  std::uint64_t seed_;
  std::vector<std::pair<double, std::uint64_t>> by_u_;
};

}  // namespace nibble::support
