// The parts of database.cc that write a job's rows and find the job of a request. They run under its lock, within a
// transaction, and may throw exceptions that FromSoci converts.
#pragma once
#include <soci/soci.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/database.h"

namespace nibble::jobs {

// Inserts the row of a new job, and the rows of its labels.
void InsertJob(soci::session& session, const StoredJob& job);
// Applies the transition except its change of state and attempt. `next`: the attempt that it leads to.
absl::Status ApplyRest(soci::session& session, const Transition& transition, long long next);

// The id of the job that the request created; nothing if the request is new. AlreadyExists (IDEMPOTENCY_CONFLICT) if
// its body was different.
absl::StatusOr<std::optional<std::string>> JobOfRequest(soci::session& session, const std::string& request_id,
                                                        const std::string& body_digest);

void SetText(soci::session& session, const std::string& id, const char* column, const std::string& value);
void SetNumber(soci::session& session, const std::string& id, const char* column, long long value);

}  // namespace nibble::jobs
