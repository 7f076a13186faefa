// A database in a directory of its own (--database_dir) and its state directory belong together: a server that opened a
// state directory with an empty database, or with that of another state directory, would take the jobs' directories for
// leftovers. A file with the same random id in both directories shows that they are a pair.
#pragma once
#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/store/layout.h"

namespace nibble::store {

inline constexpr char kDatabasePairFile[] = "database_pair";

// Checks the two directories and writes the ids that are missing. A state directory whose database was moved to an
// empty database directory becomes a pair with it. FailedPrecondition, with what the operator can do: the state
// directory still has a database of its own, or its database is elsewhere; the ids differ; only the database directory
// has an id, and it has a database; the state directory has jobs, but there is no database. Call it with both
// directories locked, before the database is opened.
absl::Status CheckDatabasePair(base::FileSystem& files, const StatePaths& paths);

}  // namespace nibble::store
