#include "server/base/clock.h"

#include <chrono>
#include <mutex>

#include "absl/time/clock.h"

namespace nibble::base {
namespace {

class SystemClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock& RealClock() {
  static SystemClock clock;  // stateless
  return clock;
}

struct FakeClock::State {
  std::mutex mutex;
  absl::Time now;
  absl::Duration elapsed = absl::ZeroDuration();
};

FakeClock::FakeClock(absl::Time start) : state_(std::make_unique<State>()) { state_->now = start; }
FakeClock::~FakeClock() = default;

absl::Time FakeClock::Now() {
  std::lock_guard lock(state_->mutex);
  return state_->now;
}

absl::Duration FakeClock::Monotonic() {
  std::lock_guard lock(state_->mutex);
  return state_->elapsed;
}

void FakeClock::Advance(absl::Duration by) {
  std::lock_guard lock(state_->mutex);
  state_->now += by;
  state_->elapsed += by;
}

}  // namespace nibble::base
