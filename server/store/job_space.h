// Disk space for jobs: how much a plan may use, and how much a job has already written.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/store/layout.h"

namespace nibble::store {

// Maximum number of bytes that one job may write so that `min_free_bytes` stay free after every removable cached base
// (base_cache.h) is removed. Ignores what other jobs have yet to write, because a job can wait until they have ended.
absl::StatusOr<std::uint64_t> PlannableBytes(base::FileSystem& files, const StatePaths& paths,
                                             std::uint64_t min_free_bytes);

// ResourceExhausted (DISK_FULL) if `bytes`, which a job is planned to write, exceed PlannableBytes: it could not start
// even after all other jobs have ended.
absl::Status CheckPlannedSpace(base::FileSystem& files, const StatePaths& paths, std::uint64_t min_free_bytes,
                               std::int64_t bytes);

// Lower bound of the disk space that a job's attempts occupy. Does not count outputs and hard links, which may share
// files with other models, nor entries beyond the first thousand. Takes milliseconds.
std::uint64_t AttemptsBytes(const StatePaths& paths, const std::string& job_id);

}  // namespace nibble::store
