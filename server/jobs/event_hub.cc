#include "server/jobs/event_hub.h"

#include <chrono>
#include <utility>

namespace nibble::jobs {

std::unique_ptr<EventHub::Subscription> EventHub::Subscribe(const std::string& job_id, Callback callback) {
  std::uint64_t id;
  {
    base::MutexLock lock(mutex_);
    id = next_id_++;
  }
  base::MutexLock lock(callback_mutex_);
  callbacks_[job_id].emplace(id, std::move(callback));
  return std::unique_ptr<Subscription>(new Subscription(*this, job_id, id));
}

EventHub::Subscription::~Subscription() {
  base::MutexLock lock(hub_.callback_mutex_);
  const auto it = hub_.callbacks_.find(job_id_);
  it->second.erase(id_);
  if (it->second.empty()) hub_.callbacks_.erase(it);
}

void EventHub::Notify(const std::string& job_id) {
  {
    base::MutexLock lock(mutex_);
    ++generation_;
    changed_.NotifyAll();
  }
  base::MutexLock lock(callback_mutex_);
  const auto it = callbacks_.find(job_id);
  if (it == callbacks_.end()) return;
  for (const auto& [id, callback] : it->second) callback();
}

void EventHub::Close() {
  base::MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

bool EventHub::Wait(absl::Duration timeout, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  while (true) {
    std::uint64_t seen;
    {
      base::MutexLock lock(mutex_);
      seen = generation_;
    }
    // Called without the mutex, because it reads the database. A change meanwhile raises the generation.
    if (done()) return true;
    base::MutexLock lock(mutex_);
    const auto moved = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || generation_ != seen; };
    if (!changed_.WaitUntil(lock, deadline, moved) || closed_) return false;
  }
}

}  // namespace nibble::jobs
