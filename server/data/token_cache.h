#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/data/large_rows.h"
#include "server/data/token_file.h"
#include "server/data/token_writer.h"

namespace nibble::data {

struct TokenCacheOptions {
  std::int64_t max_bytes = 0;        // of all files; 0 keeps only the files that open jobs need
  std::uint64_t min_free_bytes = 0;  // as in WriteTokensOptions
  std::shared_ptr<base::MemoryBudget> memory =
      nullptr;  // limits the memory of large rows and of cached words; null: no limit
  // Returns the paths of the files that open jobs need, which are never removed. On an error, no file is removed.
  std::function<absl::StatusOr<std::set<std::string>>()> needed = {};
};

// Token files below one directory: DIRECTORY/DATASET/KEY.tokens (store/layout.h). Trainers read the files, and
// write missing ones. Thread-safe.
class TokenCache {
 public:
  // Maximum number of files written at a time. Each takes memory for kTokenizeBytes of text and its tokens.
  static constexpr int kMaxWriters = 2;

  TokenCache(base::FileSystem& files, std::string directory, int threads, TokenCacheOptions options)
      : files_(files),
        directory_(std::move(directory)),
        threads_(threads),
        options_(std::move(options)),
        large_rows_(options_.memory) {}

  // Like LoadTokens, but never holds all tokens in memory: if no file can be written, returns ResourceExhausted
  // (DISK_FULL) or another file error. If several calls need the same missing file, one writes it and the others wait.
  // Returns freed memory to the system.
  absl::StatusOr<Dataset> Get(const TokenSource& source, const base::Cancelled& cancelled);
  // The same for a caller that needs no tokens: if no file can be written, returns counts and lengths instead of an
  // error, unless there are too many (WriteTokensOptions::max_counted).
  absl::StatusOr<Dataset> GetLengths(const TokenSource& source, const base::Cancelled& cancelled);

  // Removes the least recently used files that no open job needs, until max_bytes holds. Get and GetLengths also do
  // this if a file was missing. Unfinished files count, and are removed an hour after their last write. At a start,
  // pass `exists`: then all unfinished files and the files of datasets that do not exist are removed first.
  void Trim(const std::function<bool(const std::string& dataset)>& exists = {});
  // For other work that encodes rows.
  LargeRows& large_rows() { return large_rows_; }

 private:
  absl::StatusOr<Dataset> GetOr(WithoutFile without_file, const TokenSource& source, const base::Cancelled& cancelled);
  // Waits until no other call writes the file and a writer is free. Errors: Cancelled.
  absl::Status BeginWriting(const std::string& path, const base::Cancelled& cancelled);

  base::FileSystem& files_;
  const std::string directory_;
  const int threads_;
  const TokenCacheOptions options_;
  LargeRows large_rows_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::set<std::string> writing_ ABSL_GUARDED_BY(mutex_);
  base::Mutex trim_mutex_;  // one Trim at a time
};

}  // namespace nibble::data
