// The low watermark of the disk: what would need room is refused before the disk is full, for a full one could not even delete
// (docs/faults.md, R9). Reads, cancels and deletes do not ask.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::store {

// Of a file system of so many bytes: 5%, at least 1 GiB.
std::uint64_t DefaultWatermark(std::uint64_t total_bytes);
// Of the file system that holds `path`.
absl::StatusOr<std::uint64_t> TotalBytes(const std::string& path);

// What may be written where `path` lies until no more than `min_free_bytes` is free; 0 where less is.
absl::StatusOr<std::uint64_t> SpareBytes(base::FileSystem& files, const std::string& path, std::uint64_t min_free_bytes);

inline constexpr std::uint64_t kStatBlockBytes = 512;  // unit of stat's st_blocks, on every file system

// Bytes of the disk that the removal of everything below `directory` would free. A file that another directory shares, by a hard link or
// a reflink, counts 0. 0 for a missing directory. Files that change during the call may or may not count.
std::uint64_t OwnDirectoryBytes(const std::string& directory);

}  // namespace nibble::store
