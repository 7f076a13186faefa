#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/jobs/database.h"

namespace nibble::jobs {

struct RetentionOptions {
  absl::Duration final_job_ttl = absl::InfiniteDuration();  // after its end a job is deleted, as DeleteJob does; its model stays
  std::int64_t keep_step_events = 0;                        // of a job that is over, at most; 0: all
};

// Removes jobs and events that are kept no longer, in pieces of a few milliseconds between which other calls have their turn. One thread.
class Retention {
 public:
  // Deletes a final job.
  using DeleteJob = std::function<absl::Status(const std::string& id)>;
  Retention(Database& database, base::Clock& clock, const RetentionOptions& options, DeleteJob delete_job)
      : database_(database), clock_(clock), options_(options), delete_job_(std::move(delete_job)) {}

  // One piece. True where more is left: then it should be called again soon.
  bool Step();

 private:
  absl::StatusOr<bool> Remove();

  Database& database_;
  base::Clock& clock_;
  const RetentionOptions options_;
  const DeleteJob delete_job_;
  absl::Duration next_look_ = -absl::InfiniteDuration();  // when nothing was left
};

}  // namespace nibble::jobs
