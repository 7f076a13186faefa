// Checks that a disk has room.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"

namespace nibble::base {

// ResourceExhausted (DISK_FULL; metadata free_bytes, wanted_bytes) when less than `min_free_bytes` is free on the disk
// that holds `path`.
absl::Status CheckSpace(FileSystem& files, const std::string& path, std::uint64_t min_free_bytes);

}  // namespace nibble::base
