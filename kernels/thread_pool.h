// A fixed set of threads that split the outputs of one op at a time.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::kernels {

// Thread-safe: concurrent ParallelFor calls take turns. A program makes one and passes it to every kernel.
// Work is split by index only, never by timing, so results do not depend on the number of threads as long as
// an index's result does not depend on its range.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // counts the calling thread: 1 starts none; below 1 is taken as 1
  virtual ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  virtual int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(begin, end) over disjoint ranges that cover [0, n), each a multiple of `grain` long but the last;
  // returns when all are done. body must not call ParallelFor of this pool and must not throw. Virtual, so that the trainer
  // can lend torch's threads instead: two sets would fight for the cores.
  virtual void ParallelFor(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  void Work();

  std::mutex call_mutex_;  // one ParallelFor at a time
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::int64_t, std::int64_t)>* body_ = nullptr;
  std::int64_t n_ = 0;
  std::int64_t chunk_ = 0;
  std::int64_t next_ = 0;     // first index not yet taken
  int running_ = 0;           // ranges taken and not finished
  std::uint64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::kernels
