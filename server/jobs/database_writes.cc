#include "server/jobs/database_writes.h"

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/jobs/database_events.h"
#include "server/jobs/database_rows.h"

namespace nibble::jobs {

using base::StrCat;
using soci::into;
using soci::use;

namespace {

// The key of a request whose job was deleted before tenants were in the keys (RequestKey in controller.cc).
std::string KeyWithoutTenant(const std::string& key) {
  const std::size_t end = key.starts_with('\n') ? key.find('\n', 1) : std::string::npos;
  return StrCat("\n\n", end == std::string::npos ? key : key.substr(end + 1));
}

}  // namespace

void InsertJob(soci::session& session, const StoredJob& job) {
  const JobRow row = ToRow(job);
  session << "INSERT INTO jobs (id, state, attempt, retries, spec, error, progress, output_digest, published, "
             "last_sequence, created_us, started_us, ended_us, method, memory_bytes, disk_bytes, owner, tenant, "
             "digests, priority, "
             "base_model, queued_us) "
             "VALUES (:id, :state, 0, 0, :spec, '', '{}', '', 0, 0, :created, 0, 0, :method, :memory, :disk, :owner, "
             ":tenant, "
             ":digests, :priority, :base, :created2)",
      use(row.id), use(row.state), use(row.spec), use(row.created_us), use(job.spec.method), use(row.memory_bytes),
      use(row.disk_bytes), use(row.owner), use(row.tenant), use(row.digests), use(row.priority),
      use(job.spec.base_model), use(row.created_us);
  for (const auto& [key, value] : job.spec.labels) {
    session << "INSERT INTO job_labels (key, value, number) SELECT :k, :v, number FROM jobs WHERE id = :id", use(key),
        use(value), use(row.id);
  }
}

absl::Status ApplyRest(soci::session& session, const Transition& t, long long next) {
  const long long attempt = t.attempt;
  if (t.new_attempt) {
    session << "INSERT INTO attempts (job_id, attempt, token, state) VALUES (:id, :a, :t, 'RUNNING')", use(t.job_id),
        use(next), use(t.new_attempt_token);
    const long long now_us = t.events.empty() ? 0 : absl::ToUnixMicros(t.events.back().time);
    session << "INSERT INTO principal_starts (tenant, owner, started_us) SELECT tenant, owner, "
               "MAX(:now, (SELECT COALESCE(MAX(started_us), 0) + 1 FROM principal_starts)) FROM jobs WHERE id = :id "
               "ON CONFLICT (tenant, owner) DO UPDATE SET started_us = excluded.started_us",
        use(now_us), use(t.job_id);
  }
  if (t.to == JobState::kQueued && !t.events.empty()) {
    SetNumber(session, t.job_id, "queued_us", absl::ToUnixMicros(t.events.back().time));
  }
  if (t.attempt_state.has_value()) {
    session << "UPDATE attempts SET state = :s WHERE job_id = :id AND attempt = :a", use(*t.attempt_state),
        use(t.job_id), use(attempt);
  }
  if (t.retries.has_value()) SetNumber(session, t.job_id, "retries", *t.retries);
  if (t.lost_in_row.has_value()) SetNumber(session, t.job_id, "lost_in_row", *t.lost_in_row);
  if (t.error.has_value()) SetText(session, t.job_id, "error", base::Dump(ToJson(*t.error)));
  if (t.memory_bytes.has_value()) SetNumber(session, t.job_id, "memory_bytes", *t.memory_bytes);
  if (t.disk_bytes.has_value()) SetNumber(session, t.job_id, "disk_bytes", *t.disk_bytes);
  if (t.progress.has_value()) SetText(session, t.job_id, "progress", base::Dump(*t.progress));
  if (t.keep_checkpoint) SetNumber(session, t.job_id, "keep_checkpoint", 1);
  if (t.publish_digest.has_value()) SetText(session, t.job_id, "output_digest", *t.publish_digest);
  if (t.started.has_value()) SetNumber(session, t.job_id, "started_us", absl::ToUnixMicros(*t.started));
  if (t.ended.has_value()) SetNumber(session, t.job_id, "ended_us", absl::ToUnixMicros(*t.ended));
  return AppendEvents(session, t.job_id, t.events, nullptr);
}

absl::StatusOr<std::optional<std::string>> JobOfRequest(soci::session& session, const std::string& request_id,
                                                        const std::string& body_digest) {
  if (request_id.empty()) return std::optional<std::string>();
  std::string digest, id;
  const auto look = [&](const std::string& key) {
    session << "SELECT body_digest, job_id FROM idempotency WHERE request_id = :r", use(key), into(digest), into(id);
    return session.got_data();
  };
  if (!look(request_id) && !look(KeyWithoutTenant(request_id))) return std::optional<std::string>();
  if (digest != body_digest) {
    return base::WithReason(
        absl::AlreadyExistsError(StrCat("the request_id was used for a different request, which created ", id)),
        "IDEMPOTENCY_CONFLICT", {{"kind", "job"}, {"name", id}});
  }
  return std::optional<std::string>(std::move(id));
}

void SetText(soci::session& session, const std::string& id, const char* column, const std::string& value) {
  session << StrCat("UPDATE jobs SET ", column, " = :v WHERE id = :id"), use(value), use(id);
}
void SetNumber(soci::session& session, const std::string& id, const char* column, long long value) {
  session << StrCat("UPDATE jobs SET ", column, " = :v WHERE id = :id"), use(value), use(id);
}

}  // namespace nibble::jobs
