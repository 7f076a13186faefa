#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::jobs {

// Tells watchers that a job has new events; they read them from the database. Thread-safe.
class EventHub {
 public:
  using Callback = std::function<void()>;

  // The callback is called after every change of the job, on the thread that made the change, until the handle is
  // destroyed. It must return quickly and must not use the hub or the controller.
  class Subscription {
   public:
    ~Subscription();

   private:
    friend class EventHub;
    Subscription(EventHub& hub, std::string job_id, std::uint64_t id)
        : hub_(hub), job_id_(std::move(job_id)), id_(id) {}
    EventHub& hub_;
    const std::string job_id_;
    const std::uint64_t id_;
  };
  std::unique_ptr<Subscription> Subscribe(const std::string& job_id, Callback callback);

  void Notify(const std::string& job_id);
  // Ends all waits, now and later, because the server stops.
  void Close();

  // Waits until done() is true; calls it again after each Notify. False after `timeout` (real time) or Close.
  bool Wait(absl::Duration timeout, const std::function<bool()>& done);

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, std::map<std::uint64_t, Callback>> callbacks_ ABSL_GUARDED_BY(callback_mutex_);
  base::Mutex callback_mutex_;  // held while callbacks run
};

}  // namespace nibble::jobs
