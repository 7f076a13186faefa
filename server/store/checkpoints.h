// Checkpoints of a job: ATTEMPT/checkpoints/step-00000010/, each a published directory. A trainer writes and prunes the
// checkpoints of its own attempt; the server looks across attempts.
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

inline constexpr char kCheckpointMetricsFile[] = "metrics.json";  // metrics of the checkpoint: {"loss": 2.5}

struct CheckpointInfo {
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  std::string directory;
  std::uint64_t bytes = 0;
  std::string digest;  // of its manifest
  absl::Time created;
  std::map<std::string, double> metrics;  // from kCheckpointMetricsFile: "loss", "eval_loss"
};

// Starts a checkpoint below an attempt's directory; Commit publishes it.
absl::StatusOr<PendingDirectory> BeginCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                 std::int64_t step);

// Checkpoints of one attempt whose file sizes match their manifests, ordered by step. Skips a directory without a valid
// manifest. Here and below, a checkpoint that cannot be read now is an error.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(base::FileSystem& files,
                                                            const std::string& attempt_directory, std::int64_t attempt);
// Checkpoints of all attempts below `attempts_directory`, ordered by step, then attempt.
absl::StatusOr<std::vector<CheckpointInfo>> ListAllCheckpoints(base::FileSystem& files,
                                                               const std::string& attempts_directory);
// A text that changes when a checkpoint of any attempt is added, removed or altered; nullopt if an entry cannot be
// read now (FilesKey).
std::optional<std::string> CheckpointsKey(const std::string& attempts_directory);
// Finds the newest checkpoint whose every byte matches its manifest, trying older ones in turn; nullopt if there is
// none. Adds the damaged checkpoints that it finds on the way to `damaged` unless null. Cancelled when `cancelled`
// returns true.
absl::StatusOr<std::optional<CheckpointInfo>> FindNewestCheckpoint(base::FileSystem& files,
                                                                   const std::string& attempts_directory,
                                                                   std::vector<CheckpointInfo>* damaged = nullptr,
                                                                   const Cancelled& cancelled = {});
// Removes all but the newest `keep` (>= 1) checkpoints of one attempt.
absl::Status PruneCheckpoints(base::FileSystem& files, const std::string& attempt_directory, std::int64_t keep);
// The same across attempts. For the server, when no trainer of the job is running.
absl::Status PruneAllCheckpoints(base::FileSystem& files, const std::string& attempts_directory, std::int64_t keep);
// For use while the trainer of `attempt` runs and prunes its own checkpoints: removes the checkpoints of other attempts
// that are not among the newest `keep`. All checkpoints of `attempt` count as newer than those of other attempts.
absl::Status PruneOlderAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t attempt,
                                std::int64_t keep);

// Makes `copy`, which must not exist, of a checkpoint: hard links of its files, or copies where the file system has no
// hard links. The copy stays when the checkpoint is removed. Does not hash anything. NotFound if the checkpoint is
// removed meanwhile; after an error nothing is left. Once this returns OK, the copy survives a power cut.
absl::Status CopyCheckpoint(base::FileSystem& files, const std::string& checkpoint, const std::string& copy);

// Takes an attempt's directory away from a trainer that cannot be reached (its node does not answer): renames it to
// "N.lost" and puts a plain file in its place, so that the trainer can neither write there nor make the directory
// again. The functions here read the checkpoints of a lost attempt like any other's. OK if this was done before. Once
// this returns OK, it survives a power cut.
absl::Status LoseAttempt(base::FileSystem& files, const std::string& attempt_directory);
// Where LoseAttempt puts the files of an attempt: "N.lost".
std::string LostDirectory(const std::string& attempt_directory);
// True after LoseAttempt, and if it was interrupted in the middle.
bool IsLost(base::FileSystem& files, const std::string& attempt_directory);

// Removes the unfinished work (base::TemporaryName) of an attempt whose trainer no longer writes.
absl::Status CollectAttempt(base::FileSystem& files, const std::string& attempt_directory);
// The same for every attempt of a job except `living`, whose trainer may write (0: no trainer runs). A failure in one
// attempt does not stop the others; the first error is returned.
absl::Status CollectAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t living);

}  // namespace nibble::store
