// The parts of database.cc that deal with SQLite itself.
#pragma once
#include <soci/soci.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "server/jobs/database_rows.h"

namespace nibble::jobs {

// Opens the file with WAL and synchronous=FULL and brings its schema up to date, after a backup. May throw exceptions
// that FromSoci converts. InvalidArgument for a path with '"', FailedPrecondition for a schema that a newer nibbled
// wrote, Internal if the file cannot use WAL, and the errors of BackUp.
absl::Status OpenSession(soci::session& session, const std::string& path);

// Converts an exception that SOCI threw, and logs it.
absl::Status FromSoci(const std::exception& error);

// Runs "SELECT " + kJobColumns + " FROM jobs " + where. The parameters of the statement must be bound already.
// Each fetch() of the statement then fills `row`.
void OpenJobs(soci::statement& select, const std::string& where, JobRow& row);

}  // namespace nibble::jobs
