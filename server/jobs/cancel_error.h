// The error of a job that its user cancelled.
#pragma once
#include <string>

#include "server/jobs/stored_job.h"

namespace nibble::jobs {

// The message says what a pause would have kept, and which checkpoint can still be published. Reads no disk: a cancel
// must not wait for one. `from`: the state before the cancel. `progress`: the last known progress.
JobError CancelledByUser(const std::string& job_id, JobState from, const base::Json& progress);

}  // namespace nibble::jobs
