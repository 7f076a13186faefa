#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/base/cancel_token.h"
#include "server/base/mutex.h"

namespace nibble::jobs {

// The jobs that wait to be planned, and a fixed number of threads that plan them. Principals take turns: a free thread
// takes the oldest job of the principal with the fewest plans in progress. Among several such principals, it chooses
// the one whose last plan began the longest ago. So a flood of jobs of one principal delays every other principal by at
// most one plan. Only the ids of waiting jobs are kept here. Thread-safe.
class PlanningQueue {
 public:
  // Plans one job; may take minutes, and should end soon after the token is cancelled. False if the result could not be
  // recorded; it is then called again after a second.
  using Plan = std::function<bool(const std::string& id, const base::CancelToken& cancel)>;
  PlanningQueue(int num_threads, Plan plan);
  ~PlanningQueue() { Stop(); }
  PlanningQueue(const PlanningQueue&) = delete;
  PlanningQueue& operator=(const PlanningQueue&) = delete;

  void Add(const std::string& id, const std::string& principal);
  // Drops a waiting job; cancels the plan of a job that is being planned.
  void Cancel(const std::string& id);
  // Cancels the plans in progress, waits for them and drops the other jobs: they are never planned here.
  void Stop();
  // Returns when no job waits and none is being planned. A job whose result could not be recorded counts as planned
  // until it is tried again.
  void AwaitIdle();

 private:
  struct Job {
    std::string id, principal;
    base::CancelToken cancel;
  };
  struct Principal {
    int running = 0;
    std::int64_t last = 0;  // number of the turn in which its last plan began
  };
  void Work();
  std::list<Job>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Plan plan_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::list<Job> waiting_ ABSL_GUARDED_BY(mutex_);  // jobs to retry, then the others in order of submission
  std::list<Job> planning_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Principal> principals_ ABSL_GUARDED_BY(mutex_);  // only those with a job here
  int unrecorded_ ABSL_GUARDED_BY(mutex_) = 0;                           // jobs of planning_ that wait for a retry
  std::int64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::jobs
