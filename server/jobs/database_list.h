// The parts of database.cc that list jobs. They run under its lock and may throw exceptions that FromSoci converts.
#pragma once
#include <soci/soci.h>

#include <cstdint>
#include <vector>

#include "server/jobs/database.h"
#include "server/jobs/database_rows.h"
#include "server/jobs/job_query.h"

namespace nibble::jobs {

// One piece of a list.
struct JobPiece {
  std::vector<JobRow> rows;  // that match the query, newest first
  std::int64_t looked_at = 0;
  std::int64_t last = 0;  // number of the last job that was looked at
  bool more = false;      // there may be older ones
};

// Looks at up to `max_looked_at` (>= 1) jobs older than `before` (0: from the newest), and stops after `max_rows`
// (>= 1) matches. Ignores query.before.
JobPiece ListPiece(soci::session& session, const JobQuery& query, std::int64_t before, std::int64_t max_looked_at,
                   std::int64_t max_rows);

// `where`: the SQL after "FROM jobs", such as "WHERE number = 1".
std::vector<JobRow> RowsWhere(soci::session& session, const std::string& where);

std::vector<QueuedJob> QueueRows(soci::session& session);

}  // namespace nibble::jobs
