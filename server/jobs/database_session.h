// The parts of database.cc that deal with SQLite itself.
#pragma once
#include <soci/soci.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "server/jobs/database_rows.h"

namespace nibble::jobs {

// Opens the file with WAL and synchronous=FULL and brings its schema up to date. May throw what FromSoci takes.
// FailedPrecondition for a schema that a newer nibbled wrote.
absl::Status OpenSession(soci::session& session, const std::string& path);

absl::Status FromSoci(const std::exception& error);

// Runs "SELECT (all columns) FROM jobs WHERE": each fetch() of the statement, whose parameters are bound already, fills
// `row`.
void OpenJobs(soci::statement& select, const std::string& where, JobRow& row);

}  // namespace nibble::jobs
