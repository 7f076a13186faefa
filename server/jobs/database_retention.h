// The parts of database.cc that remove what is kept no longer, in pieces that take a few milliseconds. They run under its lock, within a
// transaction, and may throw what FromSoci takes.
#pragma once
#include <soci/soci.h>

#include <cstdint>
#include <string>

namespace nibble::jobs {

// Removes events of jobs that were deleted, `limit` at most. False when none are left.
bool CollectEvents(soci::session& session, std::int64_t limit);

// Where the thinning of a job's log has arrived: its steps are counted first, then removed. Lost with the process: then it begins anew.
struct ThinningPosition {
  std::string job_id = {};        // "": none is in progress
  std::int64_t sequence = 0;      // looked at up to here
  std::int64_t steps = 0;         // counted so far
  bool counted = false;
  std::int64_t last_part = -1;    // from which a step was kept
};

// Looks at `limit` events of a final job. Where the job has more than `keep` (>= 1) steps, its log is cut into `keep` equal parts, and
// each part keeps its first step. Other events stay, and so does every sequence. False when no job is left to look at.
bool ThinSteps(soci::session& session, std::int64_t keep, std::int64_t limit, ThinningPosition& position);

}  // namespace nibble::jobs
