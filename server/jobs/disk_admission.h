// Picks the jobs that the disk has room for. A job's planned bytes are reserved from its start to the end of its trainer.
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

// One thread, the scheduler's: a call takes milliseconds. What takes longer, to remove cached bases for a job, is left to the worker.
class DiskAdmission {
 public:
  // Both are borrowed; `worker` is used by Pick alone.
  DiskAdmission(const store::StateDirectory& state, DiskWorker& worker) : state_(state), worker_(worker) {}

  // As PickNext. `running`: planned bytes of the jobs that may still write, by id. Where these plans leave a job no room, the files that
  // the running jobs have written are measured and subtracted from their plans. If there is still no room, cached bases are removed
  // where that makes room, and a later call starts the job: meanwhile it is not in `short_of_disk`, which has the jobs that must wait.
  // Errors: those of the file system.
  absl::StatusOr<Picked> Pick(std::vector<QueuedJob> queue, const RunningLoad& load, const QueueLimits& limits,
                              const std::map<std::string, std::int64_t>& running, absl::Duration now);

 private:
  struct Written {
    std::int64_t attempt = 0;
    std::int64_t bytes = 0;
  };
  absl::StatusOr<Picked> PickWith(const std::vector<QueuedJob>& queue, const RunningLoad& load, QueueLimits limits,
                                  std::int64_t reserved_bytes, absl::Duration now) const;
  // Leaves of each plan what the attempts of the job have not written yet.
  void SubtractWritten(std::vector<QueuedJob>& queue);
  // Has room made for one of the jobs; false where that was tried just now.
  bool MakeRoom(const std::vector<Picked::ShortOfDisk>& short_of_disk, std::int64_t reserved_bytes, absl::Duration now);
  bool making_room() const { return room_ != nullptr && !room_->done(); }

  const store::StateDirectory& state_;
  DiskWorker& worker_;
  std::map<std::string, Written> written_;  // of queued jobs, by their ended attempts, which change no more
  absl::Duration measured_ = -absl::InfiniteDuration();  // what running jobs have written
  std::shared_ptr<Deferred<absl::StatusOr<bool>>> room_;
  absl::Duration room_tried_ = -absl::InfiniteDuration();
  std::vector<std::string> room_tried_for_;  // ids
};

}  // namespace nibble::jobs
