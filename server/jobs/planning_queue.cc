#include "server/jobs/planning_queue.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace nibble::jobs {

namespace {

constexpr std::chrono::seconds kPlanAgain(1);  // before a retry: a full disk may stay full

}  // namespace

PlanningQueue::PlanningQueue(int num_threads, Plan plan) : plan_(std::move(plan)) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

void PlanningQueue::Add(const std::string& id, const std::string& principal) {
  base::MutexLock lock(mutex_);
  if (stopping_) return;
  // A principal without a job here joins at the end of the round, so that leaving and coming back gains no turn.
  principals_.try_emplace(principal, Principal{.running = 0, .last = turns_});
  waiting_.push_back({id, principal, {}});
  changed_.NotifyAll();
}

void PlanningQueue::Cancel(const std::string& id) {
  base::MutexLock lock(mutex_);
  std::erase_if(waiting_, [&](const Job& job) { return job.id == id; });
  for (Job& job : planning_) {
    if (job.id == id) job.cancel.Cancel();
  }
  changed_.NotifyAll();
}

void PlanningQueue::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    for (Job& job : planning_) job.cancel.Cancel();
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void PlanningQueue::AwaitIdle() {
  base::MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_.empty() && planning_.size() == static_cast<std::size_t>(unrecorded_);
  });
}

std::list<PlanningQueue::Job>::iterator PlanningQueue::Next() {
  const auto rank = [this](const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Principal& principal = principals_.at(job.principal);
    return std::make_tuple(principal.running, principal.last);
  };
  const auto before = [&](const Job& a, const Job& b)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rank(a) < rank(b); };
  return std::min_element(waiting_.begin(), waiting_.end(), before);
}

void PlanningQueue::Work() {
  base::MutexLock lock(mutex_);
  while (true) {
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const auto next = Next();
    planning_.splice(planning_.end(), waiting_, next);
    Principal& principal = principals_.at(next->principal);
    ++principal.running;
    principal.last = ++turns_;
    const Job job = *next;
    lock.Unlock();
    const bool done = plan_(job.id, job.cancel);
    lock.Lock();
    if (!done) {
      ++unrecorded_;
      changed_.NotifyAll();
      changed_.WaitFor(lock, kPlanAgain,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || job.cancel.cancelled(); });
      --unrecorded_;
    }
    --principal.running;
    if (done || stopping_ || job.cancel.cancelled()) {
      planning_.erase(next);
    } else {
      waiting_.splice(waiting_.begin(), planning_, next);
    }
    std::erase_if(principals_, [this](const auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return one.second.running == 0 && std::none_of(waiting_.begin(), waiting_.end(),
                                                     [&](const Job& waits) { return waits.principal == one.first; });
    });
    changed_.NotifyAll();
  }
}

}  // namespace nibble::jobs
