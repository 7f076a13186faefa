#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::rpc {

// The threads where handlers do what may wait: gRPC's own never do. Tasks of one principal begin in the order in which they came;
// principals take turns, and none has all threads: a task may take long. Thread-safe.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  WorkerPool(int num_threads, std::size_t max_waiting);
  // Runs what is queued, then ends. Tasks must not add tasks for ever.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Adds new work of `principal` (FairnessKey(); "": no bound of its own). False when max_waiting tasks wait already, or max_waiting_each()
  // of this principal's.
  bool TryRun(Task task, const std::string& principal = "");
  // The next piece of work that was admitted before: always taken.
  void Run(Task task, const std::string& principal = "");
  std::size_t max_waiting_each() const { return std::max<std::size_t>(1, max_waiting_ / 2); }
  std::size_t num_waiting(const std::string& principal) const;
  // Threads that one principal may have.
  int max_running_each() const { return std::max(1, num_threads_ - 1); }
  // Comes back when nothing is queued and nothing runs.
  void AwaitIdle();

  // How long the call that began last had waited for its turn; told by the calls themselves, as they begin.
  void NoteWait(absl::Duration wait) { last_wait_ns_ = absl::ToInt64Nanoseconds(wait); }
  absl::Duration last_wait() const { return absl::Nanoseconds(last_wait_ns_.load()); }

 private:
  void Work();
  void Add(Task task, const std::string& principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first turn of a principal that runs fewer than max_running_each() tasks, or the end.
  std::deque<std::string>::iterator NextTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Task Take(std::string principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int num_threads_;
  const std::size_t max_waiting_;
  mutable base::Mutex mutex_;
  base::Condition wake_;
  std::map<std::string, std::deque<Task>> waiting_ ABSL_GUARDED_BY(mutex_);  // by principal; none is empty
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);                    // the keys of waiting_
  std::size_t num_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int num_running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> running_ ABSL_GUARDED_BY(mutex_);  // by principal, without ""; none is 0
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
