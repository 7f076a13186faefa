// Locks with annotations for clang's -Wthread-safety (preset `clang`), because the standard library's locks have none.
// They wrap the standard locks because ThreadSanitizer understands those, but not absl's as Debian builds them.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace nibble::base {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for its lifetime, except between Unlock and Lock. One thread.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// A condition variable. Releases the lock while the thread sleeps. Thread-safe.
// `ready` reads state that the mutex guards: a lambda declares this with ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) after
// its parameters.
class Condition {
 public:
  template <typename Ready>
  void Wait(MutexLock& lock, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(lock.lock_, ready);
  }
  // Returns the last result of ready(): false on timeout.
  template <typename Ready>
  bool WaitFor(MutexLock& lock, std::chrono::nanoseconds time, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(lock.lock_, time, ready);
  }
  template <typename Ready>
  bool WaitUntil(MutexLock& lock, std::chrono::steady_clock::time_point deadline,
                 Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_until(lock.lock_, deadline, ready);
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace nibble::base
