#pragma once
#include <memory>

#include "absl/time/time.h"

namespace nibble::base {

// Wall time is for people and records; intervals are taken from monotonic time only. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  virtual absl::Duration Monotonic() = 0;
};

Clock& RealClock();

// Moves only when told to. Thread-safe.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start);
  ~FakeClock() override;
  absl::Time Now() override;
  absl::Duration Monotonic() override;
  void Advance(absl::Duration by);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::base
