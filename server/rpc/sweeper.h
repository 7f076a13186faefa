#pragma once
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "server/base/mutex.h"

namespace nibble::rpc {

// A thread that removes expired objects, even while no RPC arrives. Create and destroy it on one thread.
class Sweeper {
 public:
  // Calls `sweep` on its thread, every `period` and first after one `period`. The destructor waits for a running call.
  Sweeper(std::chrono::milliseconds period, std::function<void()> sweep);
  ~Sweeper();
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;

 private:
  base::Mutex mutex_;
  base::Condition wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace nibble::rpc
