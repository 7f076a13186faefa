// A fixed set of threads that split the outputs of one op at a time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::kernels {

// Thread-safe: concurrent ParallelFor calls take turns. A program makes one and passes it to every kernel.
// Timing determines which thread takes a range, but not the ranges. Results do not depend on the number of threads as
// long as an index's result does not depend on its range.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // includes the calling thread: 1 starts no thread; below 1 means 1
  virtual ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  virtual int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(begin, end) over disjoint ranges that cover [0, n); the length of each, except the last, is a multiple
  // of `grain`. Returns when all calls have returned. body must not call ParallelFor of this pool and must not throw.
  // Virtual, so that the trainer can use torch's threads instead: two sets of threads would compete for the cores.
  virtual void ParallelFor(std::int64_t n, std::int64_t grain,
                           const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  void Work();
  void TakeRanges(const std::function<void(std::int64_t, std::int64_t)>& body, std::int64_t n, std::int64_t chunk);
  // Busy-waits until done() or until the spins run out: the ops of a decode step follow each other within microseconds,
  // and waking a sleeping thread takes tens of microseconds.
  template <typename Done>
  void Spin(Done done) const;

  // Not base::Mutex (which clang checks): nvcc reads this header and must not see absl.
  std::mutex call_mutex_;  // one ParallelFor at a time
  std::mutex mutex_;       // guards body_, n_, chunk_, call_, stop_
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::int64_t, std::int64_t)>* body_ = nullptr;  // null: nothing to join
  std::int64_t n_ = 0;
  std::int64_t chunk_ = 0;
  std::atomic<std::int64_t> next_{0};     // first index not yet taken
  std::atomic<int> helpers_{0};           // threads that joined the call; incremented under mutex_ while body_ is set
  std::uint64_t call_ = 0;                // calls so far, plus one for the destructor
  std::atomic<std::uint64_t> posted_{0};  // a copy of call_, which spinning threads read without mutex_
  int spins_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::kernels
