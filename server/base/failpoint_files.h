// A file system that ends its process at chosen moments: for tests of what survives (docs/faults.md).
#pragma once
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::base {

// `spec`: "PART:N:ACTION", or several with commas between them. Of the operations that change the disk (create, append, fsync, close,
// rename, mkdir, remove) on paths that hold PART, number N (from 1) is followed by ACTION:
//   before   SIGKILL to this process instead of the operation
//   after    the operation, then SIGKILL
//   stop     SIGSTOP, then the operation: the process hangs
//   full     from this operation on all of them fail as on a full disk (DISK_FULL)
// Each of several counts for itself. `real` must outlive it. InvalidArgument for another spec.
absl::StatusOr<std::unique_ptr<FileSystem>> MakeFailpointFiles(FileSystem& real, std::string_view spec);

}  // namespace nibble::base
