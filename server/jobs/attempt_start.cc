// AttemptSupervisor: how an attempt begins.
#include <algorithm>
#include <utility>

#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

using base::Json;

namespace {

// Wait before a start that could not be recorded is retried: a full disk may stay full, and each try hashes the
// checkpoint.
constexpr absl::Duration kStartAgain = absl::Seconds(1);

}  // namespace

absl::Status AttemptSupervisor::Start(const StoredJob& job, std::shared_ptr<const void> memory) {
  if (job.attempt == 0) return Begin(job, std::move(memory), Resume{});  // The first attempt has no checkpoint to hash.
  auto resume =
      disk_.Start<Found>([this, job](const store::Cancelled& cancelled) { return FindResume(job, cancelled); });
  base::MutexLock lock(mutex_);
  starting_.insert_or_assign(job.id, Starting{job, std::move(memory), std::move(resume)});
  return absl::OkStatus();
}

void AttemptSupervisor::AbandonStart(const std::string& job_id) {
  base::MutexLock lock(mutex_);
  not_before_.erase(job_id);
  const auto it = starting_.find(job_id);
  if (it == starting_.end()) return;
  it->second.resume->Cancel();
  starting_.erase(it);
}

bool AttemptSupervisor::starting(const std::string& job_id) const {
  base::MutexLock lock(mutex_);
  return starting_.contains(job_id);
}

bool AttemptSupervisor::verifying(const std::string& job_id) const {
  base::MutexLock lock(mutex_);
  return outputs_.contains(job_id);
}

bool AttemptSupervisor::on_disk() const {
  base::MutexLock lock(mutex_);
  const auto collecting = [](const Ended& ended) { return ended.collected != nullptr; };
  return !starting_.empty() || !outputs_.empty() || std::any_of(ended_.begin(), ended_.end(), collecting);
}

void AttemptSupervisor::BeginHashed() {
  std::vector<Starting> hashed;
  {
    base::MutexLock lock(mutex_);
    for (auto it = starting_.begin(); it != starting_.end();) {
      if (!it->second.resume->done()) {
        ++it;
        continue;
      }
      hashed.push_back(std::move(it->second));
      it = starting_.erase(it);
    }
  }
  for (Starting& one : hashed) {
    if (absl::Status begun = Begin(one.job, std::move(one.memory), one.resume->value()); !begun.ok()) {
      // The job is still QUEUED.
      base::LogError("cannot start a job, will retry", {{"job", one.job.id}, {"why", std::string(begun.message())}});
      base::MutexLock lock(mutex_);
      not_before_[one.job.id] = clock_.Monotonic() + kStartAgain;
    }
  }
}

absl::Status AttemptSupervisor::Begin(const StoredJob& job, std::shared_ptr<const void> memory, const Found& resume) {
  Transition transition;
  transition.job_id = job.id;
  transition.from = JobState::kQueued;
  transition.to = JobState::kPreparing;
  transition.attempt = job.attempt;
  transition.new_attempt = true;
  transition.new_attempt_token = base::NewId("token");
  if (!job.started.has_value()) transition.started = clock_.Now();
  const StateEvent event{.state = Name(JobState::kPreparing), .from = Name(JobState::kQueued)};
  transition.events.push_back(ServerEvent(job.attempt + 1, clock_.Now(), event));

  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const bool started, database_.Apply(transition));
    if (!started) return absl::OkStatus();  // Cancelled or paused meanwhile.
    Live live = MakeLive(job, job.attempt + 1, transition.new_attempt_token, std::move(memory));
    absl::Status launched = resume.ok() ? Launch(job, *resume, live) : resume.status();
    if (launched.ok()) {
      live_.emplace(job.id, std::move(live));
    } else {
      ended_.push_back(Ended{.live = std::move(live), .start_failure = std::move(launched)});
    }
  }
  hub_.Notify(job.id);
  SettleAll();
  return absl::OkStatus();
}

AttemptSupervisor::Found AttemptSupervisor::FindResume(const StoredJob& job, const store::Cancelled& cancelled) const {
  Collect(job.id, 0);
  const std::string attempts = state_.paths.attempts(job.id);
  Resume resume;
  NIBBLE_ASSIGN_OR_RETURN(resume.checkpoint,
                          store::FindNewestCheckpoint(state_.files, attempts, &resume.damaged, cancelled));
  // Older checkpoints are pruned only if the newest is known to be good.
  NIBBLE_ASSIGN_OR_RETURN(const auto all, store::ListAllCheckpoints(state_.files, attempts));
  if (resume.checkpoint.has_value() && all.back().directory == resume.checkpoint->directory) {
    NIBBLE_RETURN_IF_ERROR(store::PruneAllCheckpoints(state_.files, attempts, job.spec.run.keep_last));
  }
  return resume;
}

}  // namespace nibble::jobs
