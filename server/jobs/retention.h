#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/jobs/database.h"

namespace nibble::jobs {

struct RetentionOptions {
  // A job is deleted this long after its end, as by DeleteJob; its model stays.
  absl::Duration final_job_ttl = absl::InfiniteDuration();
  std::int64_t keep_step_events = 0;  // maximum kept of a final job; 0: all
};

// Removes expired jobs and events, in pieces of a few milliseconds so that other calls can run in between. One thread.
class Retention {
 public:
  // Deletes a final job.
  using DeleteJob = std::function<absl::Status(const std::string& id)>;
  Retention(Database& database, base::Clock& clock, const RetentionOptions& options, DeleteJob delete_job)
      : database_(database), clock_(clock), options_(options), delete_job_(std::move(delete_job)) {}

  // Removes one piece. True if more is left: call it again soon.
  bool Step();

 private:
  absl::StatusOr<bool> Remove();

  Database& database_;
  base::Clock& clock_;
  const RetentionOptions options_;
  const DeleteJob delete_job_;
  absl::Duration next_look_ = -absl::InfiniteDuration();  // Step does nothing before this
};

}  // namespace nibble::jobs
