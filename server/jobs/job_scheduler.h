#pragma once
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/database.h"
#include "server/jobs/disk_admission.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/policy.h"
#include "server/jobs/publisher.h"
#include "server/jobs/retention.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// Starts queued jobs in the order of their priorities, as far as the limits of the queue, memory and disk space allow,
// and lets the supervisor follow and end their trainers. Works in rounds, on a thread of its own. A round also removes
// old jobs. All references must outlive the scheduler. Thread-safe.
class JobScheduler {
 public:
  // `delete_job` deletes a job that Retention removes.
  JobScheduler(store::StateDirectory& state, Database& database, base::Clock& clock, const ControllerOptions& options,
               EventHub& hub, Publisher& publisher, AttemptSupervisor& supervisor, DiskWorker& disk,
               Retention::DeleteJob delete_job);
  ~JobScheduler() { Stop(); }
  JobScheduler(const JobScheduler&) = delete;
  JobScheduler& operator=(const JobScheduler&) = delete;

  // Starts the thread. It runs a round after each Wake, often while there are trainers or rows to remove, and otherwise
  // twice a second.
  void Run();
  // Runs one round. It waits for the database and for single files, never for hashing or removals. True if old jobs or
  // events are left to remove.
  bool Round();
  // Something has changed: the next round begins at once.
  void Wake();
  // From now on rounds start no job, remove none and do not retry to publish outputs.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Ends the thread after its current round.
  void Stop();
  // Lets all trainers end, unless they outlive the server (AttemptSupervisor::StopAll). No round runs meanwhile.
  void StopTrainers(absl::Duration grace);
  // Time since the last round ended or, before the first, since the scheduler was made.
  absl::Duration SinceRound() const;
  // The queue, with priorities raised by waiting.
  absl::StatusOr<std::vector<QueuedJob>> AgedQueue() const;

 private:
  void Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(round_mutex_);
  // Appends warnings to the events of jobs that wait for memory or disk space.
  void WarnWaiting(const Picked& picked, const RunningLoad& load, const QueueLimits& limits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(round_mutex_);
  // Warns once per reason while the job is in the queue. False if it did so before.
  bool WarnWaiting(const QueuedJob& waiting, const char* reason, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(round_mutex_);

  store::StateDirectory& state_;
  Database& database_;
  base::Clock& clock_;
  const ControllerOptions& options_;
  EventHub& hub_;
  Publisher& publisher_;
  AttemptSupervisor& supervisor_;

  std::atomic<bool> draining_{false};
  base::Mutex round_mutex_;  // one round at a time
  Retention retention_ ABSL_GUARDED_BY(round_mutex_);
  DiskAdmission disk_admission_ ABSL_GUARDED_BY(round_mutex_);
  std::set<std::pair<std::string, std::string>> warned_waiting_ ABSL_GUARDED_BY(round_mutex_);  // queued job and reason
  std::atomic<std::int64_t> round_ended_ns_;                                                    // monotonic
  base::Mutex wake_mutex_;
  base::Condition wake_;
  bool woken_ ABSL_GUARDED_BY(wake_mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(wake_mutex_) = false;
  std::thread thread_;
};

}  // namespace nibble::jobs
