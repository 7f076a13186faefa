#include "server/rpc/sweeper.h"

namespace nibble::rpc {

Sweeper::Sweeper(std::chrono::milliseconds period, std::function<void()> sweep)
    : thread_([this, period, sweep = std::move(sweep)] {
        while (true) {
          {
            base::MutexLock lock(mutex_);
            if (wake_.WaitFor(lock, period, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; })) return;
          }
          sweep();
        }
      }) {}

Sweeper::~Sweeper() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

}  // namespace nibble::rpc
