// Locks that clang's -Wthread-safety follows (preset `clang`): the standard library's carry no annotations, and
// ThreadSanitizer knows the standard ones, on which these stand, but not absl's as Debian builds them.
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

// Holds a mutex as long as it lives, but for the time between Unlock and Lock. One thread.
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

// What a thread waits for with a lock held. The lock is given up while it sleeps. Thread-safe.
// `ready` reads what the mutex guards: a lambda says so with ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) after its parameters.
class Condition {
 public:
  template <typename Ready>
  void Wait(MutexLock& lock, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(lock.lock_, ready);
  }
  // What ready() says at the end: false after the time.
  template <typename Ready>
  bool WaitFor(MutexLock& lock, std::chrono::nanoseconds time, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(lock.lock_, time, ready);
  }
  template <typename Ready>
  bool WaitUntil(MutexLock& lock, std::chrono::steady_clock::time_point deadline, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_until(lock.lock_, deadline, ready);
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace nibble::base
