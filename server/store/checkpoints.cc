#include "server/store/checkpoints.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/layout.h"

namespace nibble::store {

using base::JoinPath;

namespace {

std::optional<std::int64_t> AttemptNumber(const std::string& name) {
  if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(name);
}

absl::Status Prune(base::FileSystem& files, const std::vector<CheckpointInfo>& checkpoints, std::int64_t keep) {
  CHECK(keep >= 1);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < checkpoints.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(RemovePublished(files, checkpoints[i].directory));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PendingDirectory> BeginCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                 std::int64_t step) {
  return PendingDirectory::Create(files,
                                  JoinPath(JoinPath(attempt_directory, kCheckpointsDirectory), CheckpointName(step)));
}

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(base::FileSystem& files, const std::string& attempt_directory,
                                                            std::int64_t attempt) {
  std::vector<CheckpointInfo> found;
  const std::string folder = JoinPath(attempt_directory, kCheckpointsDirectory);
  if (!files.Exists(folder)) return found;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    const auto step = CheckpointStep(name);
    if (!step.has_value()) continue;
    CheckpointInfo info{attempt, *step, JoinPath(folder, name), 0, ""};
    const auto manifest = CheckSizes(files, info.directory);
    if (!manifest.ok()) continue;
    info.bytes = manifest->total_bytes();
    info.digest = manifest->digest;
    found.push_back(std::move(info));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

absl::StatusOr<std::vector<CheckpointInfo>> ListAllCheckpoints(base::FileSystem& files,
                                                               const std::string& attempts_directory) {
  std::vector<CheckpointInfo> all;
  if (!files.Exists(attempts_directory)) return all;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(attempts_directory));
  for (const std::string& name : names) {
    const auto attempt = AttemptNumber(name);
    if (!attempt.has_value()) continue;
    NIBBLE_ASSIGN_OR_RETURN(const auto some, ListCheckpoints(files, JoinPath(attempts_directory, name), *attempt));
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.attempt) < std::tie(b.step, b.attempt);
  });
  return all;
}

absl::StatusOr<std::optional<CheckpointInfo>> FindNewestCheckpoint(base::FileSystem& files,
                                                                   const std::string& attempts_directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, ListAllCheckpoints(files, attempts_directory));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const auto verified = Verify(files, it->directory);
    if (verified.ok()) return std::optional<CheckpointInfo>(*it);
    base::LogWarning("a checkpoint is damaged, the one before it is tried",
                     {{"directory", it->directory}, {"why", std::string(verified.status().message())}});
  }
  return std::optional<CheckpointInfo>();
}

absl::Status PruneCheckpoints(base::FileSystem& files, const std::string& attempt_directory, std::int64_t keep) {
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(files, attempt_directory, 0));
  return Prune(files, checkpoints, keep);
}

absl::Status PruneAllCheckpoints(base::FileSystem& files, const std::string& attempts_directory, std::int64_t keep) {
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoints, ListAllCheckpoints(files, attempts_directory));
  return Prune(files, checkpoints, keep);
}

absl::Status CollectAttempt(base::FileSystem& files, const std::string& attempt_directory) {
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, attempt_directory));
  return RemoveTemporaries(files, JoinPath(attempt_directory, kCheckpointsDirectory));
}

}  // namespace nibble::store
