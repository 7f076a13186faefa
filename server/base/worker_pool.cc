#include "server/base/worker_pool.h"

#include <algorithm>
#include <utility>

namespace nibble::base {

WorkerPool::WorkerPool(int num_threads, std::size_t max_waiting)
    : num_threads_(num_threads), max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TryRun(Task task, const std::string& principal) {
  MutexLock lock(mutex_);
  if (stop_ || num_new_ >= max_waiting_) return false;
  if (!principal.empty()) {
    const auto own = waiting_.find(principal);
    if (own != waiting_.end() && own->second.num_new >= max_waiting_each()) return false;
  }
  Add({std::move(task), /*is_new=*/true}, principal);
  return true;
}

void WorkerPool::Run(Task task, const std::string& principal) {
  MutexLock lock(mutex_);
  Add({std::move(task), /*is_new=*/false}, principal);
}

std::size_t WorkerPool::num_waiting(const std::string& principal) const {
  MutexLock lock(mutex_);
  const auto own = waiting_.find(principal);
  return own == waiting_.end() ? 0 : own->second.num_new;
}

void WorkerPool::Add(Waiting task, const std::string& principal) {
  Queue& own = waiting_[principal];
  if (own.tasks.empty()) turns_.push_back(principal);
  ++num_waiting_;
  if (task.is_new) {
    ++own.num_new;
    ++num_new_;
  }
  own.tasks.push_back(std::move(task));
  wake_.NotifyOne();
}

std::deque<std::string>::iterator WorkerPool::NextTurn() {
  return std::find_if(turns_.begin(), turns_.end(),
                      [this](const std::string& principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                        const auto running = running_.find(principal);
                        return running == running_.end() || running->second < max_running_each();
                      });
}

WorkerPool::Task WorkerPool::Take(std::string principal) {
  const auto own = waiting_.find(principal);
  Waiting next = std::move(own->second.tasks.front());
  own->second.tasks.pop_front();
  --num_waiting_;
  if (next.is_new) {
    --own->second.num_new;
    --num_new_;
  }
  ++num_running_;
  if (!principal.empty()) ++running_[principal];
  if (own->second.tasks.empty()) {
    waiting_.erase(own);
  } else {
    turns_.push_back(std::move(principal));
  }
  return std::move(next.task);
}

void WorkerPool::AwaitIdle() {
  MutexLock lock(mutex_);
  idle_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_waiting_ == 0 && num_running_ == 0; });
}

void WorkerPool::Work() {
  while (true) {
    std::string principal;
    {
      Task task;  // destroyed before it counts as done
      {
        MutexLock lock(mutex_);
        auto turn = turns_.end();
        wake_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          turn = NextTurn();
          return turn != turns_.end() || (stop_ && num_waiting_ == 0);
        });
        if (turn == turns_.end()) return;
        principal = std::move(*turn);
        turns_.erase(turn);
        task = Take(principal);
      }
      task();
    }
    MutexLock lock(mutex_);
    if (const auto running = running_.find(principal); running != running_.end() && --running->second == 0)
      running_.erase(running);
    if (--num_running_ == 0 && num_waiting_ == 0) idle_.NotifyAll();
    if (num_waiting_ > 0) wake_.NotifyOne();  // wakes a thread that found no principal below its limit
  }
}

void Pump::Wake() {
  if (wakes_.fetch_add(1) == 0) RunOnce();
}

void Pump::RunOnce() {
  workers_.Run([self = shared_from_this()] {
    const int seen = self->wakes_.load();
    self->body_();
    // Queue behind the waiting tasks, so that a pump that is always woken again does not keep its worker.
    if (self->wakes_.fetch_sub(seen) != seen) self->RunOnce();
  });
}

}  // namespace nibble::base
