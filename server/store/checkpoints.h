// Checkpoints of a job: ATTEMPT/checkpoints/step-00000010/, each a published directory. The trainer writes and prunes its own
// attempt's; the server looks across attempts.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/files.h"
#include "server/store/published_directory.h"

namespace nibble::store {

inline constexpr char kCheckpointMetricsFile[] = "metrics.json";  // {"loss": 2.5}: what is known of it, for people

struct CheckpointInfo {
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  std::string directory;
  std::uint64_t bytes = 0;
  std::string digest;  // of its manifest
  absl::Time created;
  std::map<std::string, double> metrics;  // of kCheckpointMetricsFile: "loss", "eval_loss"
};

// A checkpoint in the making below an attempt's directory; Commit publishes it.
absl::StatusOr<PendingDirectory> BeginCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                 std::int64_t step);

// Those of one attempt whose sizes fit their manifests, by step. What has no valid manifest is not one; what cannot be read
// now is an error, here and below.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(base::FileSystem& files, const std::string& attempt_directory,
                                                            std::int64_t attempt);
// Those of all attempts below `attempts_directory`, by step, then attempt.
absl::StatusOr<std::vector<CheckpointInfo>> ListAllCheckpoints(base::FileSystem& files,
                                                               const std::string& attempts_directory);
// The newest whose every byte fits its manifest, older ones tried in turn; nothing when there is none. Those that
// are damaged, as far as they were looked at, are added to `damaged` where it is given. Cancelled where `cancelled` says so.
absl::StatusOr<std::optional<CheckpointInfo>> FindNewestCheckpoint(base::FileSystem& files,
                                                                   const std::string& attempts_directory,
                                                                   std::vector<CheckpointInfo>* damaged = nullptr,
                                                                   const Cancelled& cancelled = {});
// Removes all but the newest `keep` (>= 1) of one attempt.
absl::Status PruneCheckpoints(base::FileSystem& files, const std::string& attempt_directory, std::int64_t keep);
// The same across attempts: for the server, when no trainer of the job lives.
absl::Status PruneAllCheckpoints(base::FileSystem& files, const std::string& attempts_directory, std::int64_t keep);
// While the trainer of `attempt` lives, which prunes its own: removes those of other attempts that are not among the
// newest `keep`. Every one of `attempt` counts as newer than theirs.
absl::Status PruneOlderAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t attempt,
                                std::int64_t keep);

// Removes the unfinished work (base::TemporaryName) of an attempt that no trainer writes to any more.
absl::Status CollectAttempt(base::FileSystem& files, const std::string& attempt_directory);
// The same for every attempt of a job but `living`, whose trainer may write (0: none has one). One that fails keeps no other.
absl::Status CollectAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t living);

}  // namespace nibble::store
