// Picks the jobs that the disk has room for. A job's planned bytes are reserved from its start to the end of its
// trainer.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/policy.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// One thread, the scheduler's; a call takes milliseconds. The worker removes cached bases for a job, which takes
// longer.
class DiskAdmission {
 public:
  // Both are borrowed; only Pick uses `worker`.
  DiskAdmission(const store::StateDirectory& state, DiskWorker& worker) : state_(state), worker_(worker) {}

  // Like PickNext. `running`: planned bytes, by job id, of jobs that may still write. If these plans leave no room for
  // a job, the files that running jobs have written are measured, at most every few seconds, and subtracted from their
  // plans. If there is still no room, cached bases are removed if that makes room, and a later call starts the job.
  // Until this is known, the job is not in `short_of_disk`, which lists the jobs that must wait. Errors: those of the
  // file system.
  absl::StatusOr<Picked> Pick(std::vector<QueuedJob> queue, const RunningLoad& load, const QueueLimits& limits,
                              const std::map<std::string, std::int64_t>& running, absl::Duration now);

 private:
  struct Written {
    std::int64_t attempt = 0;
    std::int64_t bytes = 0;
  };
  absl::StatusOr<Picked> PickWith(const std::vector<QueuedJob>& queue, const RunningLoad& load, QueueLimits limits,
                                  std::int64_t reserved_bytes, absl::Duration now) const;
  // Subtracts from each job's plan what its attempts have already written.
  void SubtractWritten(std::vector<QueuedJob>& queue);
  // Starts making room for one of the jobs; false if that was tried recently.
  bool MakeRoom(const std::vector<Picked::ShortOfDisk>& short_of_disk, std::int64_t reserved_bytes, absl::Duration now);
  bool making_room() const { return room_ != nullptr && !room_->done(); }

  const store::StateDirectory& state_;
  DiskWorker& worker_;
  std::map<std::string, Written> written_;  // of queued jobs; their attempts have ended and no longer change
  absl::Duration measured_ = -absl::InfiniteDuration();  // when running jobs were last measured
  std::shared_ptr<Deferred<absl::StatusOr<bool>>> room_;
  absl::Duration room_tried_ = -absl::InfiniteDuration();
  std::vector<std::string> room_tried_for_;  // ids
};

}  // namespace nibble::jobs
