#include "server/rpc/load_wait.h"

#include <chrono>
#include <utility>

#include "server/rpc/status.h"

namespace nibble::rpc {

namespace {

// Longer than any load, and within the range of the clock's type.
constexpr absl::Duration kLongestTimer = absl::Hours(24 * 365);

absl::Status Late() {
  return StoppedAt(absl::DeadlineExceededError("the deadline passed while the model was loading"), kStageQueue, 0);
}

}  // namespace

void LoadWait::Begin(const Watch& watch) {
  const auto self = shared_from_this();
  if (const absl::Duration left = deadline_ - clock_.Monotonic(); left < kLongestTimer) {
    // Capture a weak pointer, because a shared one would be a cycle: gRPC keeps the function as long as the alarm,
    // which is a member of this object. The call and the load own this object.
    timer_.Set(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(left),
               [weak = weak_from_this()](bool passed) {
                 if (const auto still_there = weak.lock(); passed && still_there != nullptr) still_there->End(Late());
               });
  }
  watch(self);
  const auto waiter =
      loads_.Wait(name_, principal_, [self](serve::ModelLoads::Loaded loaded) { self->End(std::move(loaded)); });
  std::optional<serve::ModelLoads::Loaded> early;
  {
    base::MutexLock lock(mutex_);
    begun_ = true;
    waiter_ = waiter.value_or(std::uint64_t{0});
    if (!waiter.ok()) early_ = waiter.status();
    early.swap(early_);
  }
  if (early.has_value()) {
    End(*std::move(early));
  } else if (cancel_.cancelled()) {  // cancelled before the watch could report it
    Cancelled();
  }
}

void LoadWait::Cancelled() {
  if (clock_.Monotonic() >= deadline_) return End(Late());
  End(StoppedAt(absl::CancelledError("cancelled while the model was loading"), kStageQueue, 0));
}

void LoadWait::End(serve::ModelLoads::Loaded loaded) {
  serve::ModelLoads::Then then;
  std::uint64_t waiter = 0;
  {
    base::MutexLock lock(mutex_);
    if (!begun_) {
      if (!early_.has_value()) early_ = std::move(loaded);
      return;
    }
    if (then_ == nullptr) return;
    then.swap(then_);
    waiter = waiter_;
  }
  timer_.Cancel();
  if (waiter != 0) loads_.Forget(name_, waiter);
  then(std::move(loaded));
}

}  // namespace nibble::rpc
