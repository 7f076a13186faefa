#include "server/jobs/retention.h"

#include <vector>

#include "server/base/log.h"
#include "server/base/status_macros.h"

namespace nibble::jobs {

namespace {

constexpr std::int64_t kEventsAtOnce = 500;
constexpr absl::Duration kLookAgain = absl::Seconds(10);
constexpr absl::Duration kTryAgain = absl::Minutes(1);  // after an error, such as a full disk

}  // namespace

bool Retention::Step() {
  if (clock_.Monotonic() < next_look_) return false;
  const absl::StatusOr<bool> more = Remove();
  if (more.ok() && *more) return true;
  if (!more.ok()) {
    base::LogWarning("cannot remove old jobs and events", {{"why", std::string(more.status().message())}});
  }
  next_look_ = clock_.Monotonic() + (more.ok() ? kLookAgain : kTryAgain);
  return false;
}

absl::StatusOr<bool> Retention::Remove() {
  NIBBLE_ASSIGN_OR_RETURN(const bool collected, database_.CollectEvents(kEventsAtOnce));
  if (collected) return true;
  if (options_.final_job_ttl != absl::InfiniteDuration()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> expired,
                            database_.EndedBefore(clock_.Now() - options_.final_job_ttl, 1));
    if (!expired.empty()) {
      base::LogInfo("deleting a job that ended longer ago than --final_job_ttl_s", {{"job", expired.front()}});
      NIBBLE_RETURN_IF_ERROR(delete_job_(expired.front()));
      return true;
    }
  }
  if (options_.keep_step_events == 0) return false;
  return database_.ThinSteps(options_.keep_step_events, kEventsAtOnce);
}

}  // namespace nibble::jobs
