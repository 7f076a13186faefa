#include "server/rpc/worker_pool.h"

#include <utility>

namespace nibble::rpc {

WorkerPool::WorkerPool(int num_threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TryRun(Task task) {
  std::lock_guard lock(mutex_);
  if (stop_ || tasks_.size() >= max_waiting_) return false;
  tasks_.push_back(std::move(task));
  wake_.notify_one();
  return true;
}

void WorkerPool::Run(Task task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  wake_.notify_one();
}

void WorkerPool::Work() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void Pump::Wake() {
  if (wakes_.fetch_add(1) > 0) return;
  workers_.Run([self = shared_from_this()] {
    int seen = self->wakes_.load();
    while (seen > 0) {
      self->body_();
      seen = self->wakes_.fetch_sub(seen) - seen;
    }
  });
}

}  // namespace nibble::rpc
