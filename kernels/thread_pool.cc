#include "kernels/thread_pool.h"

#include <algorithm>
#include <atomic>

namespace nibble::kernels {

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(std::int64_t n, std::int64_t grain,
                             const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (threads_.empty() || n <= grain) {
    body(0, n);
    return;
  }
  std::lock_guard call(call_mutex_);
  std::unique_lock lock(mutex_);
  // Four ranges a thread: a thread that the system delays leaves its share to the others.
  const std::int64_t pieces = 4 * static_cast<std::int64_t>(num_threads());
  const std::int64_t units = (n + grain - 1) / grain;
  chunk_ = (units + pieces - 1) / pieces * grain;
  n_ = n;
  next_ = 0;
  running_ = 0;
  body_ = &body;
  ++generation_;
  wake_.notify_all();
  while (next_ < n_) {
    const std::int64_t begin = next_;
    const std::int64_t end = std::min(n_, begin + chunk_);
    next_ = end;
    lock.unlock();
    body(begin, end);
    lock.lock();
  }
  done_.wait(lock, [this] { return running_ == 0; });
  body_ = nullptr;
}

void ThreadPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || (body_ != nullptr && next_ < n_); });
    if (stop_) return;
    while (body_ != nullptr && next_ < n_) {
      const auto* body = body_;
      const std::int64_t begin = next_;
      const std::int64_t end = std::min(n_, begin + chunk_);
      next_ = end;
      ++running_;
      lock.unlock();
      (*body)(begin, end);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }
}

}  // namespace nibble::kernels
