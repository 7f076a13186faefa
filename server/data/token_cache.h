#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/thread_pool.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/data/large_rows.h"
#include "server/data/token_file.h"
#include "server/data/token_writer.h"

namespace nibble::data {

struct TokenCacheOptions {
  std::int64_t max_bytes = 0;        // of all files; 0: only those that open jobs need are kept
  std::uint64_t min_free_bytes = 0;  // WriteTokensOptions
  std::shared_ptr<base::MemoryBudget> memory = nullptr;  // LargeRows
  // Paths of the files that open jobs need, which are never removed. An error keeps all files.
  std::function<absl::StatusOr<std::set<std::string>>()> needed = {};
};

// Token files below one directory: DIRECTORY/DATASET/KEY.tokens (store/layout.h). Trainers read them, and write those that are missing.
// Thread-safe.
class TokenCache {
 public:
  // Files that are made at a time: each takes memory (kTokeniseBytes, and what is made of it).
  static constexpr int kMaxWriters = 2;

  TokenCache(base::FileSystem& files, std::string directory, kernels::ThreadPool& pool, TokenCacheOptions options)
      : files_(files), directory_(std::move(directory)), pool_(pool), options_(std::move(options)), large_rows_(options_.memory) {}

  // As LoadTokens, but never with the tokens in memory: ResourceExhausted (DISK_FULL) and other errors of files. If several calls need
  // the same missing file, one writes it and the others wait. What that took is given back to the system.
  absl::StatusOr<Dataset> Get(const TokenSource& source, const base::Cancelled& cancelled);
  // For who needs no tokens: the same, but counts and lengths where no file can be made.
  absl::StatusOr<Dataset> GetLengths(const TokenSource& source, const base::Cancelled& cancelled);

  // Removes the least recently used files that no open job needs, until the limit is kept; Get does so too. Unfinished files count, and
  // go an hour after their writer was killed. With `exists`, at a start, all of them go, and the files of data sets that do not exist.
  void Trim(const std::function<bool(const std::string& dataset)>& exists = {});
  // For other work that encodes rows.
  LargeRows& large_rows() { return large_rows_; }

 private:
  absl::StatusOr<Dataset> GetOr(WithoutFile without_file, const TokenSource& source, const base::Cancelled& cancelled);
  // Waits until no other call makes the file and a writer is free; Cancelled.
  absl::Status BeginWriting(const std::string& path, const base::Cancelled& cancelled);

  base::FileSystem& files_;
  const std::string directory_;
  kernels::ThreadPool& pool_;
  const TokenCacheOptions options_;
  LargeRows large_rows_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::set<std::string> writing_ ABSL_GUARDED_BY(mutex_);
  base::Mutex trim_mutex_;  // one Trim at a time
};

}  // namespace nibble::data
