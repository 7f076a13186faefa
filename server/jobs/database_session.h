// The parts of database.cc that deal with SQLite itself.
#pragma once
#include <soci/soci.h>

#include <exception>
#include <string>

#include "absl/status/status.h"

namespace nibble::jobs {

// Opens the file with WAL and synchronous=FULL and brings its schema up to date. May throw what FromSoci takes.
// FailedPrecondition for a schema that a newer nibbled wrote.
absl::Status OpenSession(soci::session& session, const std::string& path);

absl::Status FromSoci(const std::exception& error);

}  // namespace nibble::jobs
