// Writes token files (token_file.h), and reads datasets from them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/memory_budget.h"
#include "server/data/large_rows.h"
#include "server/data/token_file.h"

namespace nibble::data {

// Bytes of text that all threads together tokenize at a time. It bounds the memory of WriteTokenFile, whatever the size
// of the data. A longer line stays in the mapped file until it has its turn as a large row (large_rows.h).
inline constexpr std::size_t kTokenizeBytes = std::size_t{8} << 20;

// Maximum memory of the words that one thread caches while it tokenizes (CACHED_WORDS in text/rust/src/tokenizer.rs).
inline constexpr std::int64_t kWordCacheBytes = 84 << 20;

// What LoadTokens does if no file can be written, for example on a full disk.
enum class WithoutFile { kInMemory, kLengthsAlone, kError };

struct WriteTokensOptions {
  int threads = 1;                   // number of threads that tokenize; they end with the file
  std::uint64_t min_free_bytes = 0;  // with less free disk space no file is written (DISK_FULL)
  std::size_t window_bytes = kTokenizeBytes;
  bool verify = false;              // LoadTokens: check the tokens of an existing file
  base::Cancelled cancelled = {};   // called on one thread only: at each line and in each large row that it encodes
  LargeRows* large_rows = nullptr;  // shared by calls; null: own turns for this call, and no memory limit
  std::shared_ptr<base::MemoryBudget> memory =
      nullptr;  // for cached words; too little left: no words are cached; null: no limit
  WithoutFile without_file = WithoutFile::kInMemory;  // LoadTokens
  std::size_t max_counted = std::size_t{4} << 20;     // LoadTokens, kLengthsAlone: maximum number of examples (64 MiB)
};

// Writes the token file of `source` in source.tokens_directory, which it creates if needed. The bytes do not depend on
// the number of threads. The file is written under a temporary name, synced and renamed, so an error leaves nothing.
// One thread encodes the large rows. Errors: as LoadDataset; ResourceExhausted (DISK_FULL; OUT_OF_DEVICE_MEMORY of
// a large row) and other file errors.
absl::Status WriteTokenFile(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options);

// Loads the dataset from its token file, and writes the file first if it is missing or damaged. If it cannot be
// written, without_file chooses the result: all tokens in memory; only counts and lengths (ExampleList::has_tokens is
// false), or the error if there are more than max_counted examples; or the error. The first two log a warning. Errors:
// as LoadDataset; OUT_OF_DEVICE_MEMORY of a large row.
absl::StatusOr<Dataset> LoadTokens(base::FileSystem& files, const TokenSource& source,
                                   const WriteTokensOptions& options);

}  // namespace nibble::data
