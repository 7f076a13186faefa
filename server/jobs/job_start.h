// The start of a job from a checkpoint of another job (JobSpec::resume_from, warm_start_from): what both jobs must have
// in common, and the copy that the new job keeps. docs/life_of_a_job.md, "Start from a checkpoint".
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/jobs/stored_job.h"
#include "server/store/checkpoints.h"
#include "server/store/layout.h"

namespace nibble::jobs {

struct JobStart {
  std::string checkpoint;     // "JOB/STEP"
  std::string directory;      // of the checkpoint, or of the job's copy
  std::int64_t step = 0;      // of the checkpoint
  std::uint64_t bytes = 0;    // of its files
  bool weights_only = false;  // warm_start_from
  // resume_from: whether the job reads the same rows in the same order as the job of the checkpoint, so that the data
  // cursor is valid; and whether it evaluates on the same rows.
  bool same_rows = false;
  bool same_eval = false;
};

// The start of `job` (with a resolved spec and its digests) from `checkpoint`, which `source` saved. Errors:
// InvalidArgument (FIELD_VIOLATION: another method, other fields of the method, another optimizer, no steps after the
// checkpoint's, epochs that cannot count the checkpoint's steps), FailedPrecondition (BASE_MISMATCH).
absl::StatusOr<JobStart> MakeJobStart(const StoredJob& job, const StoredJob& source,
                                      const store::CheckpointInfo& checkpoint);

// InvalidArgument (FIELD_VIOLATION) unless some of the job's `max_steps` steps come after those of the checkpoint that
// it resumes.
absl::Status CheckStepsAfter(const JobStart& start, const JobSpec& spec, std::int64_t max_steps);

// Compares every byte with the manifest. DataLoss (CHECKPOINT_CORRUPT), NotFound (CHECKPOINT) if the checkpoint was
// removed, Cancelled.
absl::Status VerifyStart(base::FileSystem& files, const JobStart& start, const base::Cancelled& cancelled);

// Makes the job's own copy, which survives the checkpoint and its job. Once this returns OK, the copy survives a power
// cut. Errors: NotFound (CHECKPOINT), DataLoss (CHECKPOINT_CORRUPT), those of the disk; then nothing is left.
absl::Status KeepStart(base::FileSystem& files, const store::StatePaths& paths, const std::string& job_id,
                       const JobStart& start);
// Reads the start that KeepStart stored. NotFound if there is none; DataLoss or InvalidArgument if it is damaged.
absl::StatusOr<JobStart> ReadStart(base::FileSystem& files, const store::StatePaths& paths, const std::string& job_id);

}  // namespace nibble::jobs
