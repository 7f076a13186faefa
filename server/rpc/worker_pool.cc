#include "server/rpc/worker_pool.h"

#include <utility>

namespace nibble::rpc {

WorkerPool::WorkerPool(int num_threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TryRun(Task task) {
  base::MutexLock lock(mutex_);
  if (stop_ || tasks_.size() >= max_waiting_) return false;
  tasks_.push_back(std::move(task));
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Run(Task task) {
  base::MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  wake_.NotifyOne();
}

void WorkerPool::AwaitIdle() {
  base::MutexLock lock(mutex_);
  idle_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty() && num_running_ == 0; });
}

void WorkerPool::Work() {
  while (true) {
    {
      Task task;  // goes, with what it holds, before it counts as done
      {
        base::MutexLock lock(mutex_);
        wake_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        ++num_running_;
      }
      task();
    }
    base::MutexLock lock(mutex_);
    if (--num_running_ == 0 && tasks_.empty()) idle_.NotifyAll();
  }
}

void Pump::Wake() {
  if (wakes_.fetch_add(1) == 0) RunOnce();
}

void Pump::RunOnce() {
  workers_.Run([self = shared_from_this()] {
    const int seen = self->wakes_.load();
    self->body_();
    // Behind the tasks that wait: a pump that is always woken again leaves its worker to them.
    if (self->wakes_.fetch_sub(seen) != seen) self->RunOnce();
  });
}

}  // namespace nibble::rpc
