// A copy of nibble.db as it was before an upgrade of its schema (docs/upgrades.md).
#pragma once
#include <soci/soci.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"

namespace nibble::jobs {

// "PATH.backup-vVERSION".
std::string BackupPath(const std::string& path, std::int64_t version);

// Writes and syncs the backup, with the permissions of the database. Keeps this backup and the newest of the older
// ones, and removes the others. An error leaves the database unchanged; ResourceExhausted (DISK_FULL) if the copy would
// not fit, and then nothing was written. May throw exceptions that FromSoci converts.
absl::Status BackUp(soci::session& session, const std::string& path, std::int64_t version, base::FileSystem& files);

}  // namespace nibble::jobs
