#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "absl/time/time.h"

namespace nibble::base {

// A queue of at most `capacity` items. Thread-safe.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed; the item is left alone.
  bool TryPush(T& item) {
    std::lock_guard lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    ready_.notify_one();
    return true;
  }
  // Waits for an item; nothing once closed and empty, or after the timeout.
  std::optional<T> Pop(absl::Duration timeout = absl::InfiniteDuration()) {
    std::unique_lock lock(mutex_);
    const auto have = [this] { return closed_ || !items_.empty(); };
    if (timeout == absl::InfiniteDuration()) {
      ready_.wait(lock, have);
    } else {
      ready_.wait_for(lock, absl::ToChronoNanoseconds(timeout), have);
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    ready_.notify_all();
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace nibble::base
