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

namespace nibble::base {

// Threads for work of handlers that may block; gRPC's own threads must not block. Tasks of one principal begin in the
// order of arrival. Principals take turns, and none may use all of several threads, because a task may take long.
// Thread-safe.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  WorkerPool(int num_threads, std::size_t max_waiting);
  // Runs all queued tasks, then ends. Tasks must not add tasks forever.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Adds new work of `principal` (FairnessKey(); "": no limit per principal). False: max_waiting tasks of new work are
  // waiting, or max_waiting_each() of this principal.
  bool TryRun(Task task, const std::string& principal = "");
  // Adds a further task of work that was already admitted. Always accepts the task, which does not count towards the
  // limits of new work and only waits for its principal's turn.
  void Run(Task task, const std::string& principal = "");
  std::size_t max_waiting_each() const { return std::max<std::size_t>(1, max_waiting_ / 2); }
  std::size_t num_waiting(const std::string& principal) const;  // tasks of new work
  // Maximum number of threads that one principal may use.
  int max_running_each() const { return std::max(1, num_threads_ - 1); }
  // Blocks until no task is queued or running.
  void AwaitIdle();

  // How long the call that began last had waited for its turn. Calls report their wait with NoteWait when they begin.
  void NoteWait(absl::Duration wait) { last_wait_ns_ = absl::ToInt64Nanoseconds(wait); }
  absl::Duration last_wait() const { return absl::Nanoseconds(last_wait_ns_.load()); }

 private:
  void Work();
  struct Waiting {
    Task task;
    bool is_new = false;  // added by TryRun
  };
  struct Queue {
    std::deque<Waiting> tasks;
    std::size_t num_new = 0;
  };
  void Add(Waiting task, const std::string& principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first turn of a principal with fewer than max_running_each() running tasks, or the end.
  std::deque<std::string>::iterator NextTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Task Take(std::string principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int num_threads_;
  const std::size_t max_waiting_;
  mutable Mutex mutex_;
  Condition wake_;
  std::map<std::string, Queue> waiting_ ABSL_GUARDED_BY(mutex_);  // by principal; no queue is empty
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);         // the keys of waiting_
  std::size_t num_waiting_ ABSL_GUARDED_BY(mutex_) = 0;           // all tasks
  std::size_t num_new_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int num_running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> running_ ABSL_GUARDED_BY(mutex_);  // by principal, without ""; no value is 0
  Condition idle_;
  std::atomic<std::int64_t> last_wait_ns_{0};
  std::vector<std::thread> threads_;
};

// Runs a body on workers whenever it is woken, never concurrently. If it is woken while it runs, it runs again behind
// the waiting tasks. Feeds a stream in pieces. Thread-safe.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  Pump(WorkerPool& workers, std::function<void()> body) : workers_(workers), body_(std::move(body)) {}
  void Wake();

 private:
  void RunOnce();

  WorkerPool& workers_;
  const std::function<void()> body_;
  std::atomic<int> wakes_{0};  // not served yet; above 0 while a run is queued or in progress
};

}  // namespace nibble::base
