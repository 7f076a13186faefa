#include "server/jobs/database.h"

#include <soci/soci.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/database_events.h"
#include "server/jobs/database_list.h"
#include "server/jobs/database_retention.h"
#include "server/jobs/database_rows.h"
#include "server/jobs/database_session.h"
#include "server/jobs/database_writes.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;
using soci::into;
using soci::use;

namespace {

// Limits of one piece of a list: jobs looked at, and rows read. The lock is held for about 5 ms per piece.
constexpr std::int64_t kLookedAtOnce = 1000;
constexpr std::int64_t kRowsAtOnce = 100;
// Maximum number of jobs looked at for one page, so that a filter that few jobs pass has a bounded cost.
constexpr std::int64_t kMaxLookedAt = 10'000;
// Events deleted together with their job, which takes milliseconds. CollectEvents removes the rest of a longer log.
constexpr std::int64_t kEventsAtOnce = 500;

// The job has ended, or a user asked it to stop.
bool IsEnd(JobState state) { return IsFinal(state) || state == JobState::kCancelling || state == JobState::kPausing; }

class SqliteDatabase : public Database {
 public:
  explicit SqliteDatabase(MakeRoom make_room) : make_room_(std::move(make_room)) {}

  absl::Status Connect(const std::string& path) {
    return Catch([&] { return OpenSession(session_, path); });
  }

  absl::StatusOr<Inserted> Insert(const StoredJob& job, const std::string& request_id, const std::string& body_digest,
                                  const NewEvent& first_event) override {
    Inserted result;
    NIBBLE_RETURN_IF_ERROR(Write([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(const std::optional<StoredJob> known, Remembered(request_id, body_digest));
      if (known.has_value()) {
        result.job = *known;
        return absl::OkStatus();
      }
      InsertJob(session_, job);
      if (!request_id.empty()) {
        const long long created_us = absl::ToUnixMicros(job.created);
        session_ << "INSERT INTO idempotency (request_id, body_digest, job_id, created_us) VALUES (:r, :b, :j, :c)",
            use(request_id), use(body_digest), use(job.id), use(created_us);
      }
      NIBBLE_RETURN_IF_ERROR(AppendEvents(session_, job.id, {first_event}, nullptr));
      NIBBLE_ASSIGN_OR_RETURN(result.job, Find(job.id));
      result.created = true;
      return absl::OkStatus();
    }));
    return result;
  }

  absl::StatusOr<std::optional<StoredJob>> FindRequest(const std::string& request_id,
                                                       const std::string& body_digest) override {
    std::optional<StoredJob> job;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(job, Remembered(request_id, body_digest));
      return absl::OkStatus();
    }));
    return job;
  }

  absl::Status ForgetRequests(absl::Time before) override {
    return Write([&] {
      const long long us = absl::ToUnixMicros(before);
      session_ << "DELETE FROM idempotency WHERE created_us < :t", use(us);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<StoredJob> Get(const std::string& id) override {
    std::optional<JobRow> row;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      row = FindRow(id);
      return absl::OkStatus();
    }));
    return row.has_value() ? FromRow(*row, memo_) : NoJob(id);
  }

  absl::StatusOr<JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel) override {
    JobPage page;
    page.next = query.before;
    for (std::int64_t looked_at = 0; looked_at < kMaxLookedAt;) {
      if (cancel.cancelled()) return absl::CancelledError("the caller is gone");
      const std::int64_t missing = limit - static_cast<std::int64_t>(page.jobs.size());
      JobPiece piece;
      NIBBLE_RETURN_IF_ERROR(Read([&] {
        piece = ListPiece(session_, query, page.next, kLookedAtOnce, std::min(missing, kRowsAtOnce));
        return absl::OkStatus();
      }));
      NIBBLE_RETURN_IF_ERROR(Parse(piece.rows, page.jobs));
      page.next = piece.more ? piece.last : 0;
      if (!piece.more || static_cast<std::int64_t>(page.jobs.size()) == limit) break;
      looked_at += piece.looked_at;
    }
    return page;
  }

  absl::StatusOr<std::vector<QueuedJob>> Queue() override {
    std::vector<QueuedJob> queue;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      queue = QueueRows(session_);
      return absl::OkStatus();
    }));
    return queue;
  }

  absl::StatusOr<std::vector<StoredJob>> ListAll(const std::vector<JobState>& states) override {
    return Select(StrCat("WHERE ", StateIsOneOf(states), " ORDER BY number DESC"));
  }

  absl::StatusOr<std::vector<StoredJob>> ListUnpublished() override {
    return Select("INDEXED BY jobs_unpublished WHERE state = 'SUCCEEDED' AND published = 0 ORDER BY number");
  }

  absl::StatusOr<std::set<std::string>> Ids() override {
    std::set<std::string> ids;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      std::string id;
      soci::statement select = (session_.prepare << "SELECT id FROM jobs", into(id));
      select.execute();
      while (select.fetch()) ids.insert(id);
      return absl::OkStatus();
    }));
    return ids;
  }

  absl::StatusOr<std::int64_t> Count(JobState state) override {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<JobCount> counts, Counts());
    std::int64_t sum = 0;
    for (const JobCount& one : counts) sum += one.state == state ? one.count : 0;
    return sum;
  }
  absl::StatusOr<std::int64_t> CountOpen(const std::string& owner, const std::string& tenant) override {
    const std::string sql =
        StrCat("SELECT COUNT(*) FROM jobs WHERE owner = :o AND tenant = :t AND ", StateIsOneOf(OpenStates()));
    long long count = 0;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      session_ << sql, use(owner), use(tenant), into(count);
      return absl::OkStatus();
    }));
    return count;
  }

  absl::StatusOr<std::vector<JobCount>> Counts() override {
    std::vector<JobCount> counts;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      std::string method, state;
      long long count = 0;
      soci::statement select = (session_.prepare << "SELECT method, state, count FROM job_counts WHERE count > 0",
                                into(method), into(state), into(count));
      select.execute();
      while (select.fetch()) {
        NIBBLE_ASSIGN_OR_RETURN(const JobState parsed, ParseJobState(state));
        counts.push_back({method, parsed, count});
      }
      return absl::OkStatus();
    }));
    return counts;
  }

  absl::Status Delete(const std::string& id, const IfEtag& etag) override {
    return WriteEnd([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, Find(id));
      NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
      if (!IsFinal(job.state) || (job.state == JobState::kSucceeded && !job.published)) {
        return base::WithReason(absl::FailedPreconditionError(
                                    StrCat("a job that is ", Name(job.state), " cannot be deleted: cancel it first")),
                                "ILLEGAL_STATE", {{"name", id}, {"state", Name(job.state)}});
      }
      session_ << "DELETE FROM job_labels WHERE number = (SELECT number FROM jobs WHERE id = :id)", use(id);
      // Its request_id stays until it expires: a late repetition must not create the job again.
      session_ << "DELETE FROM attempts WHERE job_id = :id", use(id);
      session_ << "INSERT INTO deleted_jobs (job_id) VALUES (:id)", use(id);
      jobs::CollectEvents(session_, kEventsAtOnce);
      session_ << "DELETE FROM jobs WHERE id = :id", use(id);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<bool> CollectEvents(std::int64_t limit) override {
    return WriteSome([&] { return jobs::CollectEvents(session_, limit); });
  }
  absl::StatusOr<bool> ThinSteps(std::int64_t keep, std::int64_t limit) override {
    ThinningPosition position;
    NIBBLE_ASSIGN_OR_RETURN(const bool more, WriteSome([&] {
                              position = thinning_;
                              return jobs::ThinSteps(session_, keep, limit, position);
                            }));
    base::MutexLock lock(mutex_);
    thinning_ = position;  // Only after the commit.
    return more;
  }
  absl::StatusOr<std::vector<std::string>> EndedBefore(absl::Time before, std::int64_t limit) override {
    std::vector<std::string> ids;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      const long long us = absl::ToUnixMicros(before), most = limit;
      std::string id;
      soci::statement select =
          (session_.prepare << "SELECT id FROM jobs INDEXED BY jobs_by_end WHERE ended_us > 0 AND ended_us < :t AND "
                               "(state <> 'SUCCEEDED' OR published = 1) ORDER BY ended_us LIMIT :limit",
           use(us), use(most), into(id));
      select.execute();
      while (select.fetch()) ids.push_back(id);
      return absl::OkStatus();
    }));
    return ids;
  }

  absl::StatusOr<bool> Apply(const Transition& t) override {
    if (!IsEdge(t.from, t.to)) {
      return absl::InternalError(StrCat("no edge from ", Name(t.from), " to ", Name(t.to), " (job ", t.job_id, ")"));
    }
    bool changed = false;
    const auto apply = [&]() -> absl::Status {
      const std::string from = Name(t.from), to = Name(t.to);
      const long long attempt = t.attempt, next = t.attempt + (t.new_attempt ? 1 : 0);
      soci::statement update =
          (session_.prepare
               << "UPDATE jobs SET state = :to, attempt = :next WHERE id = :id AND state = :from AND attempt = :a",
           use(to), use(next), use(t.job_id), use(from), use(attempt));
      update.execute(true);
      changed = update.get_affected_rows() == 1;
      if (!changed) return absl::OkStatus();
      return ApplyRest(session_, t, next);
    };
    NIBBLE_RETURN_IF_ERROR(IsEnd(t.to) ? WriteEnd(apply) : Write(apply));
    return changed;
  }

  absl::Status RecordTrainer(const std::string& id, std::int64_t attempt, const std::string& handle,
                             const std::optional<OomCount>& oom) override {
    return Write([&] {
      const long long number = attempt;
      const std::string group = oom.has_value() ? oom->group : "";
      const long long kills = oom.has_value() ? static_cast<long long>(oom->kills) : 0;
      session_ << "UPDATE attempts SET handle = :h, oom_group = :g, oom_kills = :k WHERE job_id = :id AND attempt = :a",
          use(handle), use(group), use(kills), use(id), use(number);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<bool> MarkPublished(const std::string& id, const std::vector<NewEvent>& events) override {
    bool marked = false;
    NIBBLE_RETURN_IF_ERROR(WriteEnd([&]() -> absl::Status {
      soci::statement update =
          (session_.prepare << "UPDATE jobs SET published = 1 WHERE id = :id AND state = 'SUCCEEDED' AND published = 0",
           use(id));
      update.execute(true);
      marked = update.get_affected_rows() == 1;
      return marked ? AppendEvents(session_, id, events, nullptr) : absl::OkStatus();  // Else marked before.
    }));
    return marked;
  }

  absl::StatusOr<StoredAttempt> GetAttempt(const std::string& id, std::int64_t attempt) override {
    StoredAttempt record;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      long long number = attempt, kills = 0;
      std::string group;
      session_ << "SELECT token, state, handle, oom_group, oom_kills FROM attempts WHERE job_id = :id AND attempt = :a",
          use(id), use(number), into(record.token), into(record.state), into(record.handle), into(group), into(kills);
      if (!session_.got_data()) return absl::NotFoundError(StrCat("job ", id, " has no attempt ", attempt));
      record.attempt = attempt;
      if (!group.empty()) record.oom = OomCount{group, static_cast<std::uint64_t>(kills)};
      return absl::OkStatus();
    }));
    return record;
  }

  absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                            const Json* progress) override {
    std::vector<Event> appended;
    const auto append = [&]() -> absl::Status {
      appended.clear();
      NIBBLE_RETURN_IF_ERROR(AppendEvents(session_, id, events, &appended));
      if (progress != nullptr) SetText(session_, id, "progress", base::Dump(*progress));
      return absl::OkStatus();
    };
    absl::Status status = Write(append);
    if (IsDiskFull(status)) {
      // A job cannot end without its last events; other jobs wait for room.
      const absl::StatusOr<StoredJob> job = Get(id);
      if (job.ok() && IsEnd(job->state)) status = WriteEnd(append);
    }
    NIBBLE_RETURN_IF_ERROR(status);
    return appended;
  }

  absl::StatusOr<bool> AppendWhile(const StoredJob& seen, const std::vector<NewEvent>& events) override {
    bool appended = false;
    NIBBLE_RETURN_IF_ERROR(Write([&]() -> absl::Status {
      const std::string state = Name(seen.state);
      const long long attempt = seen.attempt;
      long long there = 0;
      session_ << "SELECT COUNT(*) FROM jobs WHERE id = :id AND state = :s AND attempt = :a", use(seen.id), use(state),
          use(attempt), into(there);
      appended = there == 1;
      return appended ? AppendEvents(session_, seen.id, events, nullptr) : absl::OkStatus();
    }));
    return appended;
  }

  absl::StatusOr<std::vector<Event>> Events(const std::string& id, std::int64_t after, std::int64_t limit) override {
    return ReadEvents(id, [&] { return EventRows(session_, id, after, limit); });
  }

  absl::StatusOr<std::vector<Event>> EventsBefore(const std::string& id, std::int64_t before,
                                                  std::int64_t limit) override {
    return ReadEvents(id, [&] { return EventRowsBefore(session_, id, before, limit); });
  }

  absl::StatusOr<LogEnd> EndOfLog(const std::string& id) override {
    std::string state;
    long long last = 0, published = 0;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      session_ << "SELECT state, published, last_sequence FROM jobs WHERE id = :id", use(id), into(state),
          into(published), into(last);
      return session_.got_data() ? absl::OkStatus() : NoJob(id);
    }));
    NIBBLE_ASSIGN_OR_RETURN(const JobState parsed, ParseJobState(state));
    return LogEnd{last, IsFinal(parsed) && (parsed != JobState::kSucceeded || published != 0)};
  }

  absl::StatusOr<std::int64_t> LastAttemptSequence(const std::string& id, std::int64_t attempt) override {
    long long last = 0;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      last = LastOf(session_, id, attempt);
      return absl::OkStatus();
    }));
    return last;
  }

 private:
  template <typename F>
  absl::Status Catch(F f) {
    try {
      return f();
    } catch (const std::exception& error) {
      return FromSoci(error);
    }
  }
  template <typename F>
  absl::Status Read(F f) {
    base::MutexLock lock(mutex_);
    return Catch(f);
  }
  // Runs f in one transaction, which is rolled back if f fails or throws.
  template <typename F>
  absl::Status Write(F f) {
    base::MutexLock lock(mutex_);
    return Catch([&]() -> absl::Status {
      soci::transaction transaction(session_);
      NIBBLE_RETURN_IF_ERROR(f());
      transaction.commit();
      return absl::OkStatus();
    });
  }

  // Like Write, for an f that returns whether there may be more.
  template <typename F>
  absl::StatusOr<bool> WriteSome(F f) {
    bool more = false;
    NIBBLE_RETURN_IF_ERROR(Write([&] {
      more = f();
      return absl::OkStatus();
    }));
    return more;
  }

  static bool IsDiskFull(const absl::Status& status) { return base::Reason(status) == "DISK_FULL"; }
  // Like Write; on a full disk retries as long as room can be made.
  template <typename F>
  absl::Status WriteEnd(F f) {
    absl::Status status = Write(f);
    while (IsDiskFull(status) && make_room_ != nullptr && make_room_()) status = Write(f);
    return status;
  }

  // The functions from here to Exists run inside Read or Write and may throw.
  std::optional<JobRow> FindRow(const std::string& id) {
    JobRow row;
    soci::statement select(session_);
    select.exchange(use(id));
    OpenJobs(select, "WHERE id = :id", row);
    return select.fetch() ? std::optional(row) : std::nullopt;
  }
  absl::StatusOr<StoredJob> Find(const std::string& id) {
    const std::optional<JobRow> row = FindRow(id);
    return row.has_value() ? FromRow(*row, memo_) : NoJob(id);
  }

  absl::StatusOr<std::optional<StoredJob>> Remembered(const std::string& request_id, const std::string& body_digest) {
    NIBBLE_ASSIGN_OR_RETURN(const std::optional<std::string> id, JobOfRequest(session_, request_id, body_digest));
    if (!id.has_value()) return std::optional<StoredJob>();
    NIBBLE_ASSIGN_OR_RETURN(StoredJob job, Find(*id));
    return std::optional<StoredJob>(std::move(job));
  }

  // `select` runs under the lock and returns the rows.
  template <typename Select>
  absl::StatusOr<std::vector<Event>> ReadEvents(const std::string& id, Select select) {
    std::vector<EventRow> rows;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      rows = select();
      // Checked under the same lock: a job that was deleted meanwhile is NotFound, not a job without events.
      return Exists(id);
    }));
    std::vector<Event> events;
    for (const EventRow& row : rows) {
      NIBBLE_ASSIGN_OR_RETURN(events.emplace_back(), ToEvent(row));
    }
    return events;
  }

  absl::Status Exists(const std::string& id) {
    long long count = 0;
    session_ << "SELECT COUNT(*) FROM jobs WHERE id = :id", use(id), into(count);
    return count == 1 ? absl::OkStatus() : NoJob(id);
  }

  // Call without the lock: parsing a spec takes longer than reading it.
  absl::Status Parse(const std::vector<JobRow>& rows, std::vector<StoredJob>& jobs) {
    for (const JobRow& row : rows) {
      NIBBLE_ASSIGN_OR_RETURN(jobs.emplace_back(), FromRow(row, memo_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredJob>> Select(const std::string& where) {
    std::vector<JobRow> rows;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      rows = RowsWhere(session_, where);
      return absl::OkStatus();
    }));
    std::vector<StoredJob> jobs;
    NIBBLE_RETURN_IF_ERROR(Parse(rows, jobs));
    return jobs;
  }

  const MakeRoom make_room_;
  RowMemo memo_;
  base::Mutex mutex_;
  // Guarded by mutex_; Connect runs before the database is shared.
  soci::session session_;
  ThinningPosition thinning_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, MakeRoom make_room) {
  auto database = std::make_unique<SqliteDatabase>(std::move(make_room));
  NIBBLE_RETURN_IF_ERROR(database->Connect(path));
  return std::unique_ptr<Database>(std::move(database));
}

}  // namespace nibble::jobs
