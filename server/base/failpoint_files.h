// A file system that kills or stops its process at a chosen operation, or fails from there on as on a full disk. For
// tests of faults (docs/faults.md).
#pragma once
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::base {

// `spec`: "PART:N:ACTION", or several separated by commas. Each counts the operations that change the disk (create,
// append, fsync, close, rename, mkdir, remove) on paths that contain PART. Operation number N (from 1) triggers ACTION:
//   before   SIGKILL to this process instead of the operation
//   after    the operation, then SIGKILL
//   stop     SIGSTOP, then the operation: the process hangs
//   full     this operation and all later ones fail as on a full disk (DISK_FULL)
// `real` must outlive the result. InvalidArgument: malformed spec.
absl::StatusOr<std::unique_ptr<FileSystem>> MakeFailpointFiles(FileSystem& real, std::string_view spec);

}  // namespace nibble::base
