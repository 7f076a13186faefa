// Makes token files (token_file.h), and reads data sets from them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/thread_pool.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/data/large_rows.h"
#include "server/data/token_file.h"

namespace nibble::data {

// Text that is tokenised at a time, by all threads together. It bounds the memory of WriteTokenFile, whatever the size of the data. A
// line that is longer is read whole; it is a large row (large_rows.h).
inline constexpr std::size_t kTokeniseBytes = std::size_t{8} << 20;

// What LoadTokens does where no file can be made: a full disk, for example.
enum class WithoutFile { kInMemory, kLengthsAlone, kError };

struct WriteTokensOptions {
  kernels::ThreadPool& pool;         // shared with others, window by window
  std::uint64_t min_free_bytes = 0;  // with less free disk space no file is written (DISK_FULL)
  std::size_t window_bytes = kTokeniseBytes;
  bool verify = false;               // LoadTokens: read the tokens of a file that is there
  base::Cancelled cancelled = {};    // asked on the calling thread alone, at each of its lines and in its large rows
  LargeRows* large_rows = nullptr;   // shared by calls; null: a large row waits for those of this call alone, and takes what it needs
  WithoutFile without_file = WithoutFile::kInMemory;  // LoadTokens
};

// The token file of `source`, in source.tokens_directory, which is made. The bytes do not depend on the number of threads. Written under
// a temporary name, synced and renamed: an error leaves nothing. Large rows are encoded by the calling thread. Errors: as LoadDataset;
// ResourceExhausted (DISK_FULL; OUT_OF_DEVICE_MEMORY of a large row) and other errors of files.
absl::Status WriteTokenFile(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options);

// The data set from its token file, which is made where it is missing or damaged. Where it cannot be made, a warning is logged and
// without_file chooses: all tokens in memory; the counts and lengths alone (ExampleList::has_tokens is false); or the error. Errors: as
// LoadDataset; OUT_OF_DEVICE_MEMORY of a large row.
absl::StatusOr<Dataset> LoadTokens(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options);

}  // namespace nibble::data
