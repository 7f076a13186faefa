#include "server/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"
#include "server/base/mutex.h"

namespace nibble::base {
namespace {

class SystemClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }
};

}  // namespace

Clock& RealClock() {
  static SystemClock clock;  // stateless
  return clock;
}

struct FakeClock::State {
  Mutex mutex;
  absl::Time now ABSL_GUARDED_BY(mutex);
  absl::Duration elapsed ABSL_GUARDED_BY(mutex) = absl::ZeroDuration();
};

FakeClock::FakeClock(absl::Time start) : state_(std::make_unique<State>()) { state_->now = start; }
FakeClock::~FakeClock() = default;

absl::Time FakeClock::Now() {
  MutexLock lock(state_->mutex);
  return state_->now;
}

absl::Duration FakeClock::Monotonic() {
  MutexLock lock(state_->mutex);
  return state_->elapsed;
}

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(state_->mutex);
  state_->now += by;
  state_->elapsed += by;
}

}  // namespace nibble::base
