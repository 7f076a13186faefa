// Work on the disk that may take minutes: hashing checkpoints and outputs, removing the files of a job.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "server/base/cancel_token.h"
#include "server/base/cancelled.h"
#include "server/base/mutex.h"

namespace nibble::jobs {

// The result of a piece of work. Thread-safe.
template <typename T>
class Deferred {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  const T& value() const { return *value_; }  // only after done()
  // Asks the work to end early. Its value shows whether it did.
  void Cancel() { cancel_.Cancel(); }

 private:
  friend class DiskWorker;
  base::CancelToken cancel_;
  std::optional<T> value_;
  std::atomic<bool> done_{false};
};

// Does work on its own thread, one piece at a time, in order of arrival. Thread-safe.
class DiskWorker {
 public:
  // `on_done` is called on the worker's thread after each piece.
  explicit DiskWorker(std::function<void()> on_done) : on_done_(std::move(on_done)), thread_([this] { Work(); }) {}
  ~DiskWorker() { Stop(); }
  DiskWorker(const DiskWorker&) = delete;
  DiskWorker& operator=(const DiskWorker&) = delete;

  // Cancels the piece in progress, waits for it and drops the others, and all that are started later: they never become
  // done().
  void Stop();
  // Returns when nothing waits and nothing is in progress.
  void AwaitIdle();

  // `make` should end soon after its argument returns true.
  template <typename T>
  std::shared_ptr<Deferred<T>> Start(std::function<T(const base::Cancelled&)> make) {
    auto deferred = std::make_shared<Deferred<T>>();
    Add({deferred->cancel_, [deferred, make = std::move(make)] {
           deferred->value_ = make([&cancel = deferred->cancel_] { return cancel.cancelled(); });
           deferred->done_.store(true, std::memory_order_release);
         }});
    return deferred;
  }

 private:
  struct Piece {
    base::CancelToken cancel;
    std::function<void()> work;
  };
  void Add(Piece piece);
  void Work();

  const std::function<void()> on_done_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::deque<Piece> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<base::CancelToken> working_ ABSL_GUARDED_BY(mutex_);  // of the piece in progress
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nibble::jobs
