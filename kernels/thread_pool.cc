#include "kernels/thread_pool.h"

#include <algorithm>

namespace nibble::kernels {
namespace {

// About 40 us if a pause takes 20 ns: longer than the gaps between the ops of a decode step and than waking a thread.
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  // With more threads than processors, a spinning thread would only keep the others from running.
  if (num_threads <= static_cast<int>(std::thread::hardware_concurrency())) spins_ = kSpins;
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++call_;
  }
  posted_.store(call_, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

template <typename Done>
void ThreadPool::Spin(Done done) const {
  for (int i = 0; i < spins_ && !done(); ++i) Pause();
}

void ThreadPool::TakeRanges(const std::function<void(std::int64_t, std::int64_t)>& body, std::int64_t n,
                            std::int64_t chunk) {
  for (std::int64_t begin; (begin = next_.fetch_add(chunk, std::memory_order_relaxed)) < n;) {
    body(begin, std::min(n, begin + chunk));
  }
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
  // Four ranges per thread, so that other threads can take over the share of a delayed one.
  const std::int64_t pieces = 4 * static_cast<std::int64_t>(num_threads());
  const std::int64_t units = (n + grain - 1) / grain;
  const std::int64_t chunk = (units + pieces - 1) / pieces * grain;
  {
    std::lock_guard lock(mutex_);
    n_ = n;
    chunk_ = chunk;
    next_.store(0, std::memory_order_relaxed);
    body_ = &body;
    ++call_;
  }
  // Outside the lock, so that a spinning thread that sees the new value finds the lock free.
  posted_.store(call_, std::memory_order_release);
  wake_.notify_all();
  TakeRanges(body, n, chunk);
  std::unique_lock lock(mutex_);
  body_ = nullptr;  // no thread joins after this
  if (helpers_.load(std::memory_order_acquire) == 0) return;
  lock.unlock();
  Spin([this] { return helpers_.load(std::memory_order_acquire) == 0; });
  lock.lock();
  done_.wait(lock, [this] { return helpers_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::Work() {
  std::uint64_t seen = 0;
  while (true) {
    Spin([&] { return posted_.load(std::memory_order_acquire) > seen; });
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return call_ != seen; });
    seen = call_;
    if (stop_) return;
    if (body_ == nullptr) continue;  // the other threads finished before this one woke
    const auto& body = *body_;
    const std::int64_t n = n_;
    const std::int64_t chunk = chunk_;
    helpers_.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    TakeRanges(body, n, chunk);
    if (helpers_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Take the lock once: a caller that saw helpers_ above 0 holds it until it sleeps, and would miss an earlier
      // notification.
      lock.lock();
      lock.unlock();
      done_.notify_all();
    }
  }
}

}  // namespace nibble::kernels
