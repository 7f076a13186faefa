#include "server/jobs/cancel_error.h"

#include <algorithm>
#include <cstdint>

#include "server/base/strings.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

JobError CancelledByUser(base::FileSystem& files, const std::string& attempts_directory, const std::string& job_id,
                         const base::Json& progress) {
  JobError error = {"CANCELLED", "USER", "cancelled by the user"};
  const auto checkpoints = store::ListAllCheckpoints(files, attempts_directory);
  const std::int64_t saved = checkpoints.ok() && !checkpoints->empty() ? checkpoints->back().step : 0;
  const std::int64_t step = std::max(saved, base::GetInt(progress, "step", "progress", 0).value_or(0));
  if (step == 0) return error;  // Nothing was trained.
  error.message += base::StrCat(" after step ", step, "; a paused job keeps every whole step and can be resumed");
  if (saved > 0) {
    const std::string name = base::StrCat(job_id, "/", saved);
    error.message += base::StrCat("; `nibble jobs publish ", name, " --name NAME` makes a model of the last ",
                                  "checkpoint, ", name, ", until the job is deleted");
  } else if (checkpoints.ok()) {
    error.message += "; the job has no checkpoint that could be published";
  }
  return error;
}

}  // namespace nibble::jobs
