#include "server/jobs/cancel_error.h"

#include <algorithm>
#include <cstdint>

#include "server/base/strings.h"

namespace nibble::jobs {

JobError CancelledByUser(const std::string& job_id, JobState from, const base::Json& progress) {
  JobError error = {"CANCELLED", "USER", "cancelled by the user"};
  const auto number = [&](const char* key) { return base::GetInt(progress, key, "progress", 0).value_or(0); };
  const std::int64_t saved = number("checkpoint_step");
  const std::int64_t step = std::max(saved, number("step"));
  if (step == 0) return error;  // nothing was trained
  error.message += base::StrCat(" after step ", step);
  if (from != JobState::kPaused) error.message += "; a paused job keeps every whole step and can be resumed";
  if (saved > 0) {
    const std::string name = base::StrCat(job_id, "/", saved);
    error.message += base::StrCat("; `nibble jobs publish ", name, " --name NAME` makes a model of the last ",
                                  "checkpoint, ", name, ", until the job is deleted");
  } else if (progress.contains("checkpoint_step")) {
    error.message += "; the job has no checkpoint that could be published";
  }
  return error;
}

}  // namespace nibble::jobs
