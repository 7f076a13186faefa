#pragma once
#include <memory>

#include "absl/time/time.h"

namespace nibble::base {

// A source of time that tests can replace. Use Now(), the wall time, for display and records, and Monotonic() for every
// interval. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  virtual absl::Duration Monotonic() = 0;
};

Clock& RealClock();

// A clock for tests; its time moves only in Advance(). Thread-safe.
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
