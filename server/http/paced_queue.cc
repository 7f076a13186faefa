#include "server/http/paced_queue.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace nibble::http {

void PacedQueue::Add(std::function<void()> task) {
  {
    base::MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (std::exchange(posted_, true)) return;
  }
  boost::asio::post(io_, [this] { RunOne(); });
}

void PacedQueue::RunOne() {
  std::function<void()> task;
  bool more = false;
  {
    base::MutexLock lock(mutex_);
    task = std::move(tasks_.front());
    tasks_.pop_front();
    more = posted_ = !tasks_.empty();
  }
  // Posted before the task runs, because the task may throw. Handlers that are already in the io_context's queue run
  // first.
  if (more) boost::asio::post(io_, [this] { RunOne(); });
  task();
}

}  // namespace nibble::http
