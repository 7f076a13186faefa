#include "server/data/token_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"

namespace nibble::data {
namespace {

constexpr std::chrono::milliseconds kCheckEvery(50);  // of `cancelled`, while waiting
// An unfinished file is abandoned after this long without a write: a running writer writes every few seconds.
constexpr std::chrono::hours kAbandonedAfter(1);

// Records the use of a file as its time of modification, so that the order of use survives a restart.
void Touch(const std::string& path) {
  std::error_code ignored;
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now(), ignored);
}

}  // namespace

absl::Status TokenCache::BeginWriting(const std::string& path, const base::Cancelled& cancelled) {
  base::MutexLock lock(mutex_);
  const auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !writing_.contains(path) && writing_.size() < static_cast<std::size_t>(kMaxWriters);
  };
  while (!changed_.WaitFor(lock, kCheckEvery, is_free)) NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
  writing_.insert(path);
  return absl::OkStatus();
}

absl::StatusOr<Dataset> TokenCache::Get(const TokenSource& source, const base::Cancelled& cancelled) {
  return GetOr(WithoutFile::kError, source, cancelled);
}

absl::StatusOr<Dataset> TokenCache::GetLengths(const TokenSource& source, const base::Cancelled& cancelled) {
  return GetOr(WithoutFile::kLengthsAlone, source, cancelled);
}

absl::StatusOr<Dataset> TokenCache::GetOr(WithoutFile without_file, const TokenSource& source,
                                          const base::Cancelled& cancelled) {
  const std::string key = TokenKey(source);
  const std::string path = TokenFilePath(source.tokens_directory, key);
  const auto open = [&]() -> absl::StatusOr<Dataset> {
    NIBBLE_ASSIGN_OR_RETURN(auto file, TokenFile::Open(path, key));
    Touch(path);
    return DatasetOf(std::move(file));
  };
  if (auto found = open(); found.ok()) return found;
  NIBBLE_RETURN_IF_ERROR(BeginWriting(path, cancelled));
  const absl::Cleanup end = [&] {
    base::MutexLock lock(mutex_);
    writing_.erase(path);
    changed_.NotifyAll();
  };
  // Another call may have written the file meanwhile, so LoadTokens looks for it first.
  auto loaded = LoadTokens(files_, source,
                           {.threads = threads_,
                            .min_free_bytes = options_.min_free_bytes,
                            .cancelled = cancelled,
                            .large_rows = &large_rows_,
                            .memory = options_.memory,
                            .without_file = without_file});
  base::ReturnFreeMemory();  // tokenizing allocates and frees much memory on many threads
  // `loaded` maps its file, so it stays readable if Trim removes the file.
  if (loaded.ok()) Trim();
  return loaded;
}

void TokenCache::Trim(const std::function<bool(const std::string& dataset)>& exists) {
  struct StoredFile {
    std::filesystem::file_time_type used;
    std::string path;
    std::int64_t bytes = 0;
  };
  base::MutexLock lock(trim_mutex_);
  std::vector<StoredFile> stored;
  std::int64_t total_bytes = 0;
  const auto datasets = files_.List(directory_);
  if (!datasets.ok()) return;  // no file was ever written
  for (const std::string& dataset : *datasets) {
    const std::string directory = base::JoinPath(directory_, dataset);
    if (exists && !exists(dataset)) {
      files_.RemoveAll(directory).IgnoreError();
      continue;
    }
    const auto names = files_.List(directory);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const std::string path = base::JoinPath(directory, name);
      std::error_code error;
      const auto used = std::filesystem::last_write_time(path, error);
      const auto size = files_.Size(path);
      if (error || !size.ok()) continue;
      if (base::IsTemporaryName(name)) {
        // At a start (`exists` is set), this program writes no file yet. A trainer that the previous server started
        // keeps the tokens in memory if it loses its unfinished file.
        const bool abandoned = exists || std::filesystem::file_time_type::clock::now() - used > kAbandonedAfter;
        if (!abandoned || !files_.RemoveAll(path).ok()) total_bytes += static_cast<std::int64_t>(*size);
      } else if (IsTokenFileName(name)) {
        stored.push_back({used, path, static_cast<std::int64_t>(*size)});
        total_bytes += stored.back().bytes;
      }
    }
  }
  if (total_bytes <= options_.max_bytes) return;
  absl::StatusOr<std::set<std::string>> needed = std::set<std::string>();
  if (options_.needed) needed = options_.needed();
  if (!needed.ok()) {
    base::LogWarning("token files exceed their limit; cannot determine which files open jobs need",
                     {{"why", std::string(needed.status().message())}});
    return;
  }
  std::sort(stored.begin(), stored.end(), [](const StoredFile& a, const StoredFile& b) { return a.used < b.used; });
  for (const StoredFile& file : stored) {
    if (total_bytes <= options_.max_bytes) return;
    if (needed->contains(file.path)) continue;
    if (files_.RemoveAll(file.path).ok()) total_bytes -= file.bytes;
  }
}

}  // namespace nibble::data
