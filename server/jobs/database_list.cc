#include "server/jobs/database_list.h"

#include <limits>
#include <string>

#include "server/base/strings.h"
#include "server/jobs/database_session.h"

namespace nibble::jobs {

using base::StrCat;
using soci::into;
using soci::use;

JobPiece ListPiece(soci::session& session, const JobQuery& query, std::int64_t before, std::int64_t max_looked_at,
                   std::int64_t max_rows) {
  JobPiece piece;
  SqlTexts texts;
  const std::string sql = CandidateSql(query, texts);
  const long long from = before == 0 ? std::numeric_limits<long long>::max() : before, limit = max_looked_at;
  long long number = 0, wanted = 0, num_wanted = 0;
  std::string numbers;
  {
    soci::statement walk(session);
    walk.exchange(use(from, "before"));
    walk.exchange(use(limit, "limit"));
    for (const auto& [name, value] : texts) walk.exchange(use(value, name));
    walk.exchange(into(number));
    walk.exchange(into(wanted));
    walk.alloc();
    walk.prepare(sql);
    walk.define_and_bind();
    walk.execute();
    while (num_wanted < max_rows && walk.fetch()) {
      ++piece.looked_at;
      piece.last = number;
      if (wanted == 0) continue;
      numbers = StrCat(numbers, numbers.empty() ? "" : ", ", number);
      ++num_wanted;
    }
  }
  piece.more = num_wanted == max_rows || piece.looked_at == max_looked_at;
  if (!numbers.empty()) piece.rows = RowsWhere(session, StrCat("WHERE number IN (", numbers, ") ORDER BY number DESC"));
  return piece;
}

std::vector<JobRow> RowsWhere(soci::session& session, const std::string& where) {
  std::vector<JobRow> rows;
  JobRow row;
  soci::statement select(session);
  OpenJobs(select, where, row);
  while (select.fetch()) rows.push_back(row);
  return rows;
}

std::vector<QueuedJob> QueueRows(soci::session& session) {
  std::vector<QueuedJob> queue;
  std::string id, owner, tenant;
  long long number = 0, priority = 0, memory_bytes = 0, disk_bytes = 0, attempt = 0, queued_us = 0, started_us = 0;
  soci::statement select =
      (session.prepare
           << "SELECT id, number, priority, memory_bytes, disk_bytes, attempt, jobs.owner, jobs.tenant, queued_us, "
              "COALESCE(principal_starts.started_us, 0) FROM jobs INDEXED BY jobs_queue "
              "LEFT JOIN principal_starts ON principal_starts.tenant = jobs.tenant AND principal_starts.owner = "
              "jobs.owner "
              "WHERE state = 'QUEUED'",
       into(id), into(number), into(priority), into(memory_bytes), into(disk_bytes), into(attempt), into(owner),
       into(tenant), into(queued_us), into(started_us));
  select.execute();
  while (select.fetch()) {
    queue.push_back({.id = id,
                     .priority = priority,
                     .submitted = number,
                     .not_before = absl::ZeroDuration(),
                     .memory_bytes = memory_bytes,
                     .attempt = attempt,
                     .disk_bytes = disk_bytes,
                     .owner = owner,
                     .tenant = tenant,
                     .queued = absl::FromUnixMicros(queued_us),
                     .principal_started = absl::FromUnixMicros(started_us)});
  }
  return queue;
}

}  // namespace nibble::jobs
