#pragma once
#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>

#include "server/base/mutex.h"

namespace nibble::http {

// Runs tasks on the thread of the io_context, one at a time. Between two tasks the thread runs the other handlers that
// are queued, so a hundred tasks delay another connection by one task, not by a hundred. Add may be called on any
// thread.
class PacedQueue {
 public:
  explicit PacedQueue(boost::asio::io_context& io) : io_(io) {}
  PacedQueue(const PacedQueue&) = delete;
  PacedQueue& operator=(const PacedQueue&) = delete;

  void Add(std::function<void()> task);

 private:
  void RunOne();

  boost::asio::io_context& io_;
  base::Mutex mutex_;
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;  // a call of RunOne is queued
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::http
