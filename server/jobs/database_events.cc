#include "server/jobs/database_events.h"

#include <map>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

using base::Json;
using soci::into;
using soci::use;

namespace {

// `query` has the parameters :id, :bound and :limit, in this order.
std::vector<EventRow> Select(soci::session& session, const char* query, const std::string& id, long long bound,
                             long long limit) {
  std::vector<EventRow> rows;
  EventRow row;
  soci::statement select = (session.prepare << query, use(id), use(bound), use(limit), into(row.sequence),
                            into(row.attempt), into(row.type), into(row.time_us), into(row.body));
  select.execute();
  while (select.fetch()) rows.push_back(row);
  return rows;
}

}  // namespace

std::vector<EventRow> EventRows(soci::session& session, const std::string& id, std::int64_t after, std::int64_t limit) {
  return Select(session,
                "SELECT sequence, attempt, type, time_us, body FROM events WHERE job_id = :id AND "
                "sequence > :bound ORDER BY sequence LIMIT :limit",
                id, after, limit);
}

std::vector<EventRow> EventRowsBefore(soci::session& session, const std::string& id, std::int64_t before,
                                      std::int64_t limit) {
  return Select(session,
                "SELECT sequence, attempt, type, time_us, body FROM events WHERE job_id = :id AND "
                "sequence < :bound ORDER BY sequence DESC LIMIT :limit",
                id, before, limit);
}

NewEvent ServerEvent(std::int64_t attempt, absl::Time time, const EventBody& body) {
  return {attempt, std::nullopt, time, TypeOf(body), Encode(body)};
}

absl::StatusOr<Event> ToEvent(const EventRow& row) {
  NIBBLE_ASSIGN_OR_RETURN(Json json, base::ParseJson(row.body));
  return Event{row.sequence, row.attempt, row.type, absl::FromUnixMicros(row.time_us), std::move(json)};
}

long long LastOf(soci::session& session, const std::string& id, long long attempt) {
  long long last = 0;
  session << "SELECT COALESCE(MAX(attempt_sequence), 0) FROM events WHERE job_id = :id AND attempt = :a", use(id),
      use(attempt), into(last);
  return last;
}

absl::Status AppendEvents(soci::session& session, const std::string& id, const std::vector<NewEvent>& events,
                          std::vector<Event>* appended) {
  if (events.empty()) return absl::OkStatus();
  long long sequence = 0;
  session << "SELECT last_sequence FROM jobs WHERE id = :id", use(id), into(sequence);
  if (!session.got_data()) return NoJob(id);
  std::map<long long, long long> last_of;  // by attempt
  for (const NewEvent& event : events) {
    const long long attempt = event.attempt;
    if (event.attempt_sequence.has_value()) {
      const auto [it, is_new] = last_of.emplace(attempt, 0);
      if (is_new) it->second = LastOf(session, id, attempt);
      if (*event.attempt_sequence <= it->second) continue;
      it->second = *event.attempt_sequence;
    }
    ++sequence;
    Event full{sequence, event.attempt, event.type, event.time, Json::object()};
    full.body["sequence"] = sequence;
    full.body["time"] = FormatEventTime(event.time);
    full.body["type"] = event.type;
    full.body["attempt"] = event.attempt;
    for (const auto& item : event.fields.items()) {
      if (!full.body.contains(item.key())) full.body[item.key()] = item.value();
    }
    const std::string body = base::Dump(full.body);
    const long long time_us = absl::ToUnixMicros(event.time);
    const long long attempt_sequence = event.attempt_sequence.value_or(0);
    soci::indicator given = event.attempt_sequence.has_value() ? soci::i_ok : soci::i_null;
    session << "INSERT INTO events (job_id, sequence, attempt, attempt_sequence, type, time_us, body) "
               "VALUES (:id, :s, :a, :q, :type, :t, :b)",
        use(id), use(sequence), use(attempt), use(attempt_sequence, given), use(event.type), use(time_us), use(body);
    if (appended != nullptr) appended->push_back(std::move(full));
  }
  session << "UPDATE jobs SET last_sequence = :s WHERE id = :id", use(sequence), use(id);
  return absl::OkStatus();
}

}  // namespace nibble::jobs
