// Makes token files (token_file.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/thread_pool.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/data/token_file.h"

namespace nibble::data {

// Text that is tokenised at a time, by all threads together. It bounds the memory of WriteTokenFile, whatever the size of the data. A
// line that is longer is taken whole.
inline constexpr std::size_t kTokeniseBytes = std::size_t{8} << 20;

struct WriteTokensOptions {
  kernels::ThreadPool& pool;         // shared with others, window by window
  std::uint64_t min_free_bytes = 0;  // with less free disk space no file is written (DISK_FULL)
  std::size_t window_bytes = kTokeniseBytes;
  bool verify = false;               // LoadTokens: read the tokens of a file that is there
  base::Cancelled cancelled = {};    // asked on the calling thread alone, at each of its lines
};

// The token file of `source`, in source.tokens_directory, which is made. The bytes do not depend on the number of threads. Written under
// a temporary name, synced and renamed: an error leaves nothing. Errors: as LoadDataset; ResourceExhausted (DISK_FULL) and other errors
// of files.
absl::Status WriteTokenFile(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options);

// The data set from its token file, which is made where it is missing or damaged. Where it cannot be made (a full disk) the tokens are
// made in memory, and a warning is logged. Errors: as LoadDataset.
absl::StatusOr<Dataset> LoadTokens(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options);

}  // namespace nibble::data
