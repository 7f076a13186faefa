// The error of a job that its user cancelled.
#pragma once
#include <string>

#include "server/base/files.h"
#include "server/jobs/stored_job.h"

namespace nibble::jobs {

// The message says what a pause would have kept, and which checkpoint below `attempts_directory` can still be
// published. `progress` is the last that is known. The job must have no trainer. If the checkpoints cannot be read now,
// the message does not mention them.
JobError CancelledByUser(base::FileSystem& files, const std::string& attempts_directory, const std::string& job_id,
                         const base::Json& progress);

}  // namespace nibble::jobs
