// Shows that data is tokenized on several threads.
#pragma once
#include <time.h>

#include <chrono>
#include <thread>

#include "server/base/cancelled.h"

namespace nibble::data {

// Cancelled() returns a callback for code that tokenizes on several threads and checks for cancellation on one of them.
// At the first line, the callback holds that thread until the other threads of the process have worked. On the thread
// that made this object, the callback does nothing.
class TokenizingThreads {
 public:
  base::Cancelled Cancelled() {
    return [this] {
      if (std::this_thread::get_id() == maker_) return false;
      // The first call on that thread precedes all lines.
      if (++calls_ == 1) before_ = Others();
      if (calls_ == 2) others_worked_ = AwaitOthers();
      return false;
    };
  }
  bool others_worked() const { return others_worked_; }

 private:
  // Processor time of all threads except this one.
  static std::chrono::nanoseconds Others() { return Used(CLOCK_PROCESS_CPUTIME_ID) - Used(CLOCK_THREAD_CPUTIME_ID); }
  static std::chrono::nanoseconds Used(clockid_t clock) {
    timespec used{};
    clock_gettime(clock, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }
  bool AwaitOthers() const {
    constexpr std::chrono::milliseconds kWork(20);  // idle threads of kernels/thread_pool.h spin less than 1 ms
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Others() - before_ < kWork && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return Others() - before_ >= kWork;
  }

  const std::thread::id maker_ = std::this_thread::get_id();
  int calls_ = 0;
  std::chrono::nanoseconds before_{0};
  bool others_worked_ = false;
};

}  // namespace nibble::data
