// The parts of database.cc that remove expired rows, in pieces of a few milliseconds. They run under its lock, within a
// transaction, and may throw exceptions that FromSoci converts.
#pragma once
#include <soci/soci.h>

#include <cstdint>
#include <string>

namespace nibble::jobs {

// Removes at most `limit` events of deleted jobs. False if there is no such job.
bool CollectEvents(soci::session& session, std::int64_t limit);

// Progress of thinning one job's log: its steps are counted first, then removed. Kept only in memory: after a restart
// the job's thinning starts over.
struct ThinningPosition {
  std::string job_id = {};    // "": no thinning is in progress
  std::int64_t sequence = 0;  // last event looked at
  std::int64_t steps = 0;     // counted so far
  bool counted = false;
  std::int64_t last_part = -1;  // part of the last step looked at; -1: none yet
};

// Marks a batch of final jobs with short logs as thinned, or looks at up to `limit` events of one final job. If that
// job has more than `keep` (>= 1) steps, its log is divided into `keep` equal parts, and only the first step of each
// part is kept. Other events stay, and sequences do not change. False if no job is left to thin.
bool ThinSteps(soci::session& session, std::int64_t keep, std::int64_t limit, ThinningPosition& position);

}  // namespace nibble::jobs
