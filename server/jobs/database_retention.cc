#include "server/jobs/database_retention.h"

#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;
using soci::into;
using soci::use;

namespace {

constexpr int kJobsAtOnce = 200;

// Of the next kJobsAtOnce jobs to thin, marks those whose log has at most `keep` events as thinned. True if there were
// any.
bool PassShortLogs(soci::session& session, long long keep) {
  const long long limit = kJobsAtOnce;
  soci::statement pass = (session.prepare << "UPDATE jobs SET steps_kept = :keep WHERE number IN (SELECT number FROM "
                                             "(SELECT number, last_sequence FROM jobs "
                                             "INDEXED BY jobs_by_steps_kept WHERE ended_us > 0 AND steps_kept > :keep "
                                             "ORDER BY steps_kept, number LIMIT :limit) "
                                             "WHERE last_sequence <= :keep)",
                          use(keep, "keep"), use(limit, "limit"));
  pass.execute(true);
  return pass.get_affected_rows() > 0;
}

bool FindJob(soci::session& session, long long keep, ThinningPosition& position) {
  std::string id;
  session << "SELECT id FROM jobs INDEXED BY jobs_by_steps_kept WHERE ended_us > 0 AND steps_kept > :keep ORDER BY "
             "steps_kept, number "
             "LIMIT 1",
      use(keep), into(id);
  if (!session.got_data()) return false;
  position = {.job_id = id};
  return true;
}

}  // namespace

bool CollectEvents(soci::session& session, std::int64_t limit) {
  std::string id;
  session << "SELECT job_id FROM deleted_jobs LIMIT 1", into(id);
  if (!session.got_data()) return false;
  const long long most = limit;
  soci::statement remove = (session.prepare << "DELETE FROM events WHERE rowid IN (SELECT rowid FROM events WHERE "
                                               "job_id = :id ORDER BY sequence LIMIT :limit)",
                            use(id), use(most));
  remove.execute(true);
  if (remove.get_affected_rows() < limit) session << "DELETE FROM deleted_jobs WHERE job_id = :id", use(id);
  return true;
}

bool ThinSteps(soci::session& session, std::int64_t keep, std::int64_t limit, ThinningPosition& position) {
  const long long most = limit, kept = keep;
  if (position.job_id.empty()) {
    if (PassShortLogs(session, kept)) return true;
    if (!FindJob(session, kept, position)) return false;
  }
  long long last_sequence = 0;
  session << "SELECT last_sequence FROM jobs WHERE id = :id", use(position.job_id), into(last_sequence);
  if (!session.got_data()) {
    position = {};  // Deleted meanwhile.
    return true;
  }
  const std::int64_t part_length = (last_sequence + keep - 1) / keep;
  const long long after = position.sequence;
  long long row = 0, sequence = 0, looked_at = 0;
  std::string type, removed;
  {
    soci::statement select = (session.prepare << "SELECT rowid, sequence, type FROM events WHERE job_id = :id AND "
                                                 "sequence > :after ORDER BY sequence LIMIT :limit",
                              use(position.job_id), use(after), use(most), into(row), into(sequence), into(type));
    select.execute();
    while (select.fetch()) {
      ++looked_at;
      position.sequence = sequence;
      if (type != "step") continue;
      if (!position.counted) {
        ++position.steps;
        continue;
      }
      const std::int64_t part = (sequence - 1) / part_length;
      if (part == position.last_part) removed = StrCat(removed, removed.empty() ? "" : ", ", row);
      position.last_part = part;
    }
  }
  if (!removed.empty()) session << StrCat("DELETE FROM events WHERE rowid IN (", removed, ")");
  if (looked_at == most) return true;
  if (!position.counted && position.steps > keep) {
    position = {.job_id = position.job_id, .steps = position.steps, .counted = true};
    return true;
  }
  session << "UPDATE jobs SET steps_kept = :keep WHERE id = :id", use(kept), use(position.job_id);
  position = {};
  return true;
}

}  // namespace nibble::jobs
