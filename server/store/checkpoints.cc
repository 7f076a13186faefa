#include "server/store/checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <tuple>

#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/files_key.h"
#include "server/store/layout.h"

namespace nibble::store {

using base::JoinPath;

namespace {

constexpr std::uint64_t kMaxMetricsBytes = 1 << 16;

constexpr char kLostSuffix[] = ".lost";

std::optional<std::int64_t> AttemptNumber(std::string name) {
  if (name.ends_with(kLostSuffix)) name.resize(name.size() - std::strlen(kLostSuffix));
  constexpr std::size_t kMaxDigits = 9;  // of any attempt; stoll cannot overflow
  if (name.empty() || name.size() > kMaxDigits || name.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(name);
}

struct AttemptDirectory {
  std::int64_t attempt = 0;
  std::string path;
};
// Finds the directories of all attempts; of a lost attempt, only the renamed one.
absl::StatusOr<std::vector<AttemptDirectory>> AttemptDirectories(base::FileSystem& files,
                                                                 const std::string& attempts_directory) {
  std::vector<AttemptDirectory> found;
  if (!files.Exists(attempts_directory)) return found;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(attempts_directory));
  for (const std::string& name : names) {
    const auto attempt = AttemptNumber(name);
    std::string path = JoinPath(attempts_directory, name);
    if (attempt.has_value() && !IsLost(files, path)) found.push_back({*attempt, std::move(path)});
  }
  return found;
}

absl::Status Prune(base::FileSystem& files, const std::vector<CheckpointInfo>& checkpoints, std::int64_t keep) {
  CHECK(keep >= 1);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < checkpoints.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(RemovePublished(files, checkpoints[i].directory));
  }
  return absl::OkStatus();
}

std::map<std::string, double> ReadMetrics(base::FileSystem& files, const std::string& directory) {
  std::map<std::string, double> metrics;
  const auto text = files.Read(JoinPath(directory, kCheckpointMetricsFile), kMaxMetricsBytes);
  const auto json = base::ParseJson(text.ok() ? *text : "{}");
  if (!json.ok() || !json->is_object()) return metrics;
  for (const auto& item : json->items()) {
    if (item.value().is_number()) metrics[item.key()] = item.value().get<double>();
  }
  return metrics;
}

}  // namespace

absl::StatusOr<PendingDirectory> BeginCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                 std::int64_t step) {
  return PendingDirectory::Create(files,
                                  JoinPath(JoinPath(attempt_directory, kCheckpointsDirectory), CheckpointName(step)));
}

namespace {

// Adds checkpoints with a wrong manifest or wrong sizes to `damaged` unless null.
absl::StatusOr<std::vector<CheckpointInfo>> ListOne(base::FileSystem& files, const std::string& attempt_directory,
                                                    std::int64_t attempt, std::vector<CheckpointInfo>* damaged) {
  std::vector<CheckpointInfo> found;
  const std::string folder = JoinPath(attempt_directory, kCheckpointsDirectory);
  if (!files.Exists(folder)) return found;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    const auto step = CheckpointStep(name);
    if (!step.has_value()) continue;
    CheckpointInfo info;
    info.attempt = attempt;
    info.step = *step;
    info.directory = JoinPath(folder, name);
    const auto manifest = CheckSizes(files, info.directory);
    if (!manifest.ok()) {
      if (!SaysDamaged(manifest.status())) return manifest.status();
      if (damaged != nullptr) damaged->push_back(std::move(info));
      continue;
    }
    info.bytes = manifest->total_bytes();
    info.digest = manifest->digest;
    info.created = ModifiedTime(JoinPath(info.directory, kManifestFile));
    info.metrics = ReadMetrics(files, info.directory);
    found.push_back(std::move(info));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

absl::StatusOr<std::vector<CheckpointInfo>> ListAll(base::FileSystem& files, const std::string& attempts_directory,
                                                    std::vector<CheckpointInfo>* damaged) {
  std::vector<CheckpointInfo> all;
  NIBBLE_ASSIGN_OR_RETURN(const auto attempts, AttemptDirectories(files, attempts_directory));
  for (const AttemptDirectory& one : attempts) {
    NIBBLE_ASSIGN_OR_RETURN(const auto some, ListOne(files, one.path, one.attempt, damaged));
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return std::tie(a.step, a.attempt) < std::tie(b.step, b.attempt); });
  return all;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(base::FileSystem& files,
                                                            const std::string& attempt_directory,
                                                            std::int64_t attempt) {
  return ListOne(files, attempt_directory, attempt, nullptr);
}

absl::StatusOr<std::vector<CheckpointInfo>> ListAllCheckpoints(base::FileSystem& files,
                                                               const std::string& attempts_directory) {
  return ListAll(files, attempts_directory, nullptr);
}

std::optional<std::string> CheckpointsKey(const std::string& attempts_directory) {
  std::error_code error;
  std::vector<std::string> attempts;
  for (std::filesystem::directory_iterator it(attempts_directory, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_directory(error)) continue;  // a lost attempt
    const std::string folder = JoinPath(it->path().string(), kCheckpointsDirectory);
    const auto key = FilesKey(folder);
    if (!key.has_value()) return std::nullopt;
    attempts.push_back(base::StrCat(folder, "\n", *key));
  }
  if (error) return std::nullopt;
  std::sort(attempts.begin(), attempts.end());
  std::string key;
  for (const std::string& attempt : attempts) key += attempt;
  return key;
}

absl::StatusOr<std::optional<CheckpointInfo>> FindNewestCheckpoint(base::FileSystem& files,
                                                                   const std::string& attempts_directory,
                                                                   std::vector<CheckpointInfo>* damaged,
                                                                   const Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, ListAll(files, attempts_directory, damaged));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const auto verified = Verify(files, it->directory, cancelled);
    if (verified.ok()) return std::optional<CheckpointInfo>(*it);
    if (!SaysDamaged(verified.status())) return verified.status();
    base::LogWarning("checkpoint is damaged, trying the previous one",
                     {{"directory", it->directory}, {"why", std::string(verified.status().message())}});
    if (damaged != nullptr) damaged->push_back(*it);
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

absl::Status PruneOlderAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t attempt,
                                std::int64_t keep) {
  NIBBLE_ASSIGN_OR_RETURN(auto checkpoints, ListAllCheckpoints(files, attempts_directory));
  const auto own = std::stable_partition(checkpoints.begin(), checkpoints.end(),
                                         [&](const CheckpointInfo& one) { return one.attempt != attempt; });
  const auto num_others = static_cast<std::size_t>(own - checkpoints.begin());
  for (std::size_t i = 0; i < num_others && i + static_cast<std::size_t>(keep) < checkpoints.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(RemovePublished(files, checkpoints[i].directory));
  }
  return absl::OkStatus();
}

namespace {

// Makes `to` a hard link of `from`, or a copy if the file system has no hard links.
absl::Status LinkFile(base::FileSystem& files, const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  constexpr std::size_t kPiece = 1 << 20;
  NIBBLE_ASSIGN_OR_RETURN(const auto source, base::MappedFile::Open(from));
  NIBBLE_ASSIGN_OR_RETURN(auto target, files.Create(to));
  for (std::string_view rest = source->text(); !rest.empty(); rest.remove_prefix(std::min(kPiece, rest.size()))) {
    NIBBLE_RETURN_IF_ERROR(target->Append(rest.substr(0, kPiece)));
  }
  NIBBLE_RETURN_IF_ERROR(target->Sync());
  return target->Close();
}

absl::Status LinkFiles(base::FileSystem& files, const std::string& from, const std::string& to) {
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, CheckSizes(files, from));
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(to));
  for (const ManifestEntry& file : manifest.files) {
    NIBBLE_RETURN_IF_ERROR(LinkFile(files, JoinPath(from, file.name), JoinPath(to, file.name)));
  }
  NIBBLE_RETURN_IF_ERROR(LinkFile(files, JoinPath(from, kManifestFile), JoinPath(to, kManifestFile)));
  return files.SyncDirectory(to);
}

}  // namespace

absl::Status CopyCheckpoint(base::FileSystem& files, const std::string& checkpoint, const std::string& copy) {
  const std::string temporary = base::TemporaryName(copy);
  absl::Status made = LinkFiles(files, checkpoint, temporary);
  if (made.ok()) made = MovePublished(files, temporary, copy);
  if (made.ok()) return made;
  files.RemoveAll(temporary).IgnoreError();
  files.RemoveAll(copy).IgnoreError();
  return files.Exists(checkpoint) ? made : absl::NotFoundError(base::StrCat(checkpoint, " no longer exists"));
}

std::string LostDirectory(const std::string& attempt_directory) { return attempt_directory + kLostSuffix; }

bool IsLost(base::FileSystem& files, const std::string& attempt_directory) {
  return files.Exists(LostDirectory(attempt_directory));
}

absl::Status LoseAttempt(base::FileSystem& files, const std::string& attempt_directory) {
  if (!IsLost(files, attempt_directory)) {
    NIBBLE_RETURN_IF_ERROR(files.Rename(attempt_directory, LostDirectory(attempt_directory)));
  }
  // The trainer may have made the directory again since the rename.
  constexpr int kTries = 10;
  absl::Status placed;
  for (int i = 0; i < kTries; ++i) {
    placed = base::WriteFileAtomically(files, attempt_directory, "The server has given up this attempt.\n");
    if (placed.ok() || !std::filesystem::is_directory(attempt_directory)) break;
    NIBBLE_RETURN_IF_ERROR(files.RemoveAll(attempt_directory));
  }
  return placed;
}

absl::Status CollectAttempt(base::FileSystem& files, const std::string& attempt_directory) {
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, attempt_directory));
  return RemoveTemporaries(files, JoinPath(attempt_directory, kCheckpointsDirectory));
}

absl::Status CollectAttempts(base::FileSystem& files, const std::string& attempts_directory, std::int64_t living) {
  NIBBLE_ASSIGN_OR_RETURN(const auto attempts, AttemptDirectories(files, attempts_directory));
  absl::Status first;
  for (const AttemptDirectory& one : attempts) {
    if (one.attempt != living) first.Update(CollectAttempt(files, one.path));
  }
  return first;
}

}  // namespace nibble::store
