#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::rpc {

// The threads where handlers do what may wait: gRPC's own never do. Thread-safe.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  WorkerPool(int num_threads, std::size_t max_waiting);
  // Runs what is queued, then ends. Tasks must not add tasks for ever.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // New work: false when max_waiting tasks wait already.
  bool TryRun(Task task);
  // The next piece of work that was admitted before: always taken.
  void Run(Task task);
  // Comes back when nothing is queued and nothing runs.
  void AwaitIdle();

  // How long the call that began last had waited for its turn; told by the calls themselves, as they begin.
  void NoteWait(absl::Duration wait) { last_wait_ns_ = absl::ToInt64Nanoseconds(wait); }
  absl::Duration last_wait() const { return absl::Nanoseconds(last_wait_ns_.load()); }

 private:
  void Work();

  const std::size_t max_waiting_;
  base::Mutex mutex_;
  base::Condition wake_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int num_running_ ABSL_GUARDED_BY(mutex_) = 0;
  base::Condition idle_;
  std::atomic<std::int64_t> last_wait_ns_{0};
  std::vector<std::thread> threads_;
};

// Runs a body on workers, never twice at a time, and once more, after the tasks that wait, when it was woken meanwhile: feeds a
// stream in pieces.
// Thread-safe.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  Pump(WorkerPool& workers, std::function<void()> body) : workers_(workers), body_(std::move(body)) {}
  void Wake();

 private:
  void RunOnce();

  WorkerPool& workers_;
  const std::function<void()> body_;
  std::atomic<int> wakes_{0};
};

}  // namespace nibble::rpc
