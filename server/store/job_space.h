// Room on the disk for jobs: what a plan may count on, and what a job has written already.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/store/layout.h"

namespace nibble::store {

// What one job may write until no more than `min_free_bytes` is free, once all cached bases are removed that free anything
// (base_cache.h). What other jobs have yet to write is not looked at: they end.
absl::StatusOr<std::uint64_t> PlannableBytes(base::FileSystem& files, const Layout& layout, std::uint64_t min_free_bytes);

// ResourceExhausted (DISK_FULL) when a job that is planned to write `bytes` has no room, whatever else ends.
absl::Status CheckPlannedSpace(base::FileSystem& files, const Layout& layout, std::uint64_t min_free_bytes, std::int64_t bytes);

// What the attempts of a job have written and still take. At least: an output may share the files of other models and does not count,
// and of a job with very many files some do not. Milliseconds.
std::uint64_t AttemptsBytes(const Layout& layout, const std::string& job_id);

}  // namespace nibble::store
