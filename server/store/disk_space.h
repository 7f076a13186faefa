// The low watermark of the disk: work that needs room is refused before the disk is full, because on a full disk even
// deletion fails (docs/faults.md, R9). Reads, cancels and deletes do not check it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::store {

// Watermark for a file system of `total_bytes`: 5%, at least 1 GiB.
std::uint64_t DefaultWatermark(std::uint64_t total_bytes);
// Size of the file system that holds `path`.
absl::StatusOr<std::uint64_t> TotalBytes(const std::string& path);

// Bytes that may be written to the file system of `path` before only `min_free_bytes` are free; 0 if fewer are free
// already.
absl::StatusOr<std::uint64_t> SpareBytes(base::FileSystem& files, const std::string& path,
                                         std::uint64_t min_free_bytes);

// Logs `warning` if less than `min_free_bytes` are free. For a start of the server: without it, the first refused call
// would be the first sign.
void WarnBelowWatermark(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes,
                        std::string_view warning);

inline constexpr std::uint64_t kStatBlockBytes = 512;  // unit of stat's st_blocks, on every file system

// Bytes of the disk that removing everything below `directory` would free. Files and extents that are shared, by a hard
// link or a reflink, count 0. 0 for a missing directory. Files that change during the call may or may not count.
std::uint64_t OwnDirectoryBytes(const std::string& directory);

}  // namespace nibble::store
