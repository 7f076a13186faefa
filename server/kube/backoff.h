// Pauses after failed calls to the API server.
#pragma once
#include <cstdint>
#include <optional>
#include <random>

#include "absl/time/time.h"

namespace nibble::kube {

// Pauses between attempts at something that fails: doubled from `min` to `max`, each shortened by up to a half, so that
// clients that failed together do not return together. The same seed gives the same pauses. One thread.
class Backoff {
 public:
  Backoff(absl::Duration min, absl::Duration max, std::uint64_t seed) : min_(min), max_(max), random_(seed) {}

  // The pause after one more failure, at least `retry_after`.
  absl::Duration Next(std::optional<absl::Duration> retry_after = std::nullopt);
  void Reset() { num_failures_ = 0; }
  int num_failures() const { return num_failures_; }  // since the last Reset

 private:
  const absl::Duration min_, max_;
  std::mt19937_64 random_;
  int num_failures_ = 0;
};

}  // namespace nibble::kube
