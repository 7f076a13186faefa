// The query of a job list, and the SQL that finds its jobs by an index.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/job_state.h"

namespace nibble::jobs {

// All conditions must hold; an unset one always does.
struct JobQuery {
  std::vector<JobState> states = {};  // any of these; empty: all
  std::optional<std::string> tenant = {};
  std::optional<std::string> base_model = {};
  std::map<std::string, std::string> labels = {};  // each with this value
  std::int64_t before = 0;                         // StoredJob::number: only older jobs; 0: from the newest
};

// Text values of a statement by parameter name, without the colon.
using SqlTexts = std::map<std::string, std::string>;

// A statement that walks an index (without conditions, the table) from the newest job to the oldest: columns "number"
// and "wanted" (1 where the conditions that the index does not cover hold). With several states it merges one walk per
// state. Parameters: :before, :limit, and those that are added to `texts`. Never sorts, and never reads a job that the
// index rules out.
std::string CandidateSql(const JobQuery& query, SqlTexts& texts);
// "state IN ('QUEUED', ...)"
std::string StateIsOneOf(const std::vector<JobState>& states);

}  // namespace nibble::jobs
