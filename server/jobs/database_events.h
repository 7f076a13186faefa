// The parts of database.cc that deal with events. They run under its lock and may throw exceptions that FromSoci
// converts.
#pragma once
#include <soci/soci.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/database.h"

namespace nibble::jobs {

struct EventRow {
  long long sequence = 0, attempt = 0, time_us = 0;
  std::string type, body;
};

// Events with sequence > after, in order, at most `limit`.
std::vector<EventRow> EventRows(soci::session& session, const std::string& id, std::int64_t after, std::int64_t limit);
// Events with sequence < before, newest first, at most `limit`.
std::vector<EventRow> EventRowsBefore(soci::session& session, const std::string& id, std::int64_t before,
                                      std::int64_t limit);
absl::StatusOr<Event> ToEvent(const EventRow& row);

// Sequence of the attempt's last journal line among the events; 0: none.
long long LastOf(soci::session& session, const std::string& id, long long attempt);

// Like Database::Append, without the progress. `appended` may be null.
absl::Status AppendEvents(soci::session& session, const std::string& id, const std::vector<NewEvent>& events,
                          std::vector<Event>* appended);

}  // namespace nibble::jobs
