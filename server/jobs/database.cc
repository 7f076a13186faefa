#include "server/jobs/database.h"

#include <soci/soci.h>

#include <exception>
#include <map>
#include <utility>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/database_rows.h"
#include "server/jobs/database_session.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;
using soci::into;
using soci::use;

namespace {

constexpr std::int64_t kAll = -1;  // LIMIT of SQLite: none

// What a user asked to end, or what has ended.
bool IsEnd(JobState state) { return IsFinal(state) || state == JobState::kCancelling || state == JobState::kPausing; }

// What a request of a job that was deleted before tenants were in the keys (RequestKey in controller.cc) is remembered by.
std::string KeyWithoutTenant(const std::string& key) {
  const std::size_t end = key.starts_with('\n') ? key.find('\n', 1) : std::string::npos;
  return StrCat("\n\n", end == std::string::npos ? key : key.substr(end + 1));
}

class SqliteDatabase : public Database {
 public:
  explicit SqliteDatabase(MakeRoom make_room) : make_room_(std::move(make_room)) {}

  absl::Status Connect(const std::string& path) {
    return Catch([&] { return OpenSession(session_, path); });
  }

  absl::StatusOr<Inserted> Insert(const JobRecord& job, const std::string& request_id, const std::string& body_digest,
                                  const NewEvent& first_event) override {
    Inserted result;
    NIBBLE_RETURN_IF_ERROR(Write([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(const std::optional<JobRecord> known, Remembered(request_id, body_digest));
      if (known.has_value()) {
        result.job = *known;
        return absl::OkStatus();
      }
      JobRow row = ToRow(job);
      session_ << "INSERT INTO jobs (id, state, attempt, retries, spec, error, progress, output_digest, published, "
                  "last_sequence, created_us, started_us, ended_us, method, memory_bytes, owner, tenant, digests) VALUES (:id, "
                  ":state, 0, 0, :spec, '', '{}', '', 0, 0, :created, 0, 0, :method, :memory, :owner, :tenant, :digests)",
          use(row.id), use(row.state), use(row.spec), use(row.created_us), use(job.spec.method), use(row.memory_bytes),
          use(row.owner), use(row.tenant), use(row.digests);
      if (!request_id.empty()) {
        session_ << "INSERT INTO idempotency (request_id, body_digest, job_id, created_us) VALUES (:r, :b, :j, :c)",
            use(request_id), use(body_digest), use(row.id), use(row.created_us);
      }
      NIBBLE_RETURN_IF_ERROR(AppendEvents(job.id, {first_event}, nullptr));
      NIBBLE_ASSIGN_OR_RETURN(result.job, Find(job.id));
      result.created = true;
      return absl::OkStatus();
    }));
    return result;
  }

  absl::StatusOr<std::optional<JobRecord>> FindRequest(const std::string& request_id,
                                                       const std::string& body_digest) override {
    std::optional<JobRecord> job;
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

  absl::StatusOr<JobRecord> Get(const std::string& id) override {
    JobRecord job;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(job, Find(id));
      return absl::OkStatus();
    }));
    return job;
  }

  absl::StatusOr<std::vector<JobRecord>> List(const std::vector<JobState>& states, std::int64_t before,
                                              std::int64_t limit) override {
    return Listed(states, before, limit);
  }
  absl::StatusOr<std::vector<JobRecord>> ListAll(const std::vector<JobState>& states) override {
    return Listed(states, 0, kAll);
  }

  absl::StatusOr<std::vector<JobRecord>> ListUnpublished() override {
    return Select(
        "WHERE (:before = 0 OR number < :before2) AND state = 'SUCCEEDED' AND published = 0 ORDER BY number LIMIT :limit",
        0, kAll);
  }

  absl::StatusOr<std::int64_t> Count(JobState state) override { return CountWhere("state = :s", std::string(Name(state))); }
  absl::StatusOr<std::int64_t> CountOpen(const std::string& owner, const std::string& tenant) override {
    return CountWhere("owner = :o AND tenant = :t AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')", owner, tenant);
  }

  absl::StatusOr<std::vector<JobCount>> Counts() override {
    std::vector<JobCount> counts;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      std::string method, state;
      long long count = 0;
      soci::statement select = (session_.prepare << "SELECT method, state, COUNT(*) FROM jobs GROUP BY method, state",
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
      NIBBLE_ASSIGN_OR_RETURN(const JobRecord job, Find(id));
      NIBBLE_RETURN_IF_ERROR(CheckEtag(job, etag));
      if (!IsFinal(job.state) || (job.state == JobState::kSucceeded && !job.published)) {
        return base::WithReason(
            absl::FailedPreconditionError(StrCat("a job that is ", Name(job.state), " cannot be deleted: cancel it first")),
            "ILLEGAL_STATE", {{"name", id}, {"state", Name(job.state)}});
      }
      // Its request_id stays until it is old: a late repetition must not make the job anew.
      for (const char* table : {"events", "attempts"}) {
        session_ << StrCat("DELETE FROM ", table, " WHERE job_id = :id"), use(id);
      }
      session_ << "DELETE FROM jobs WHERE id = :id", use(id);
      return absl::OkStatus();
    });
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
          (session_.prepare << "UPDATE jobs SET state = :to, attempt = :next WHERE id = :id AND state = :from AND attempt = :a",
           use(to), use(next), use(t.job_id), use(from), use(attempt));
      update.execute(true);
      changed = update.get_affected_rows() == 1;
      if (!changed) return absl::OkStatus();
      return ApplyRest(t, attempt, next);
    };
    NIBBLE_RETURN_IF_ERROR(IsEnd(t.to) ? WriteEnd(apply) : Write(apply));
    return changed;
  }

  absl::Status RecordProcess(const std::string& id, std::int64_t attempt, const ProcessId& process) override {
    return Write([&] {
      const long long pid = process.pid, ticks = process.start_ticks, number = attempt;
      session_ << "UPDATE attempts SET pid = :p, start_ticks = :t WHERE job_id = :id AND attempt = :a", use(pid),
          use(ticks), use(id), use(number);
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
      return marked ? AppendEvents(id, events, nullptr) : absl::OkStatus();  // Said before: its events are there.
    }));
    return marked;
  }

  absl::StatusOr<AttemptRecord> GetAttempt(const std::string& id, std::int64_t attempt) override {
    AttemptRecord record;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      long long number = attempt, pid = 0, ticks = 0;
      session_ << "SELECT token, state, pid, start_ticks FROM attempts WHERE job_id = :id AND attempt = :a", use(id),
          use(number), into(record.token), into(record.state), into(pid), into(ticks);
      if (!session_.got_data()) return absl::NotFoundError(StrCat("job ", id, " has no attempt ", attempt));
      record.attempt = attempt;
      if (pid != 0) record.process = ProcessId{pid, ticks};
      return absl::OkStatus();
    }));
    return record;
  }

  absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                            const Json* progress) override {
    std::vector<Event> appended;
    const auto append = [&]() -> absl::Status {
      appended.clear();
      NIBBLE_RETURN_IF_ERROR(AppendEvents(id, events, &appended));
      if (progress != nullptr) SetText(id, "progress", base::Dump(*progress));
      return absl::OkStatus();
    };
    absl::Status status = Write(append);
    if (IsDiskFull(status)) {
      // A job that a user wants to end cannot end without its last events; others wait for room.
      const absl::StatusOr<JobRecord> job = Get(id);
      if (job.ok() && IsEnd(job->state)) status = WriteEnd(append);
    }
    NIBBLE_RETURN_IF_ERROR(status);
    return appended;
  }

  absl::StatusOr<bool> AppendWhile(const JobRecord& seen, const std::vector<NewEvent>& events) override {
    bool appended = false;
    NIBBLE_RETURN_IF_ERROR(Write([&]() -> absl::Status {
      const std::string state = Name(seen.state);
      const long long attempt = seen.attempt;
      long long there = 0;
      session_ << "SELECT COUNT(*) FROM jobs WHERE id = :id AND state = :s AND attempt = :a", use(seen.id), use(state),
          use(attempt), into(there);
      appended = there == 1;
      return appended ? AppendEvents(seen.id, events, nullptr) : absl::OkStatus();
    }));
    return appended;
  }

  absl::StatusOr<std::vector<Event>> Events(const std::string& id, std::int64_t after, std::int64_t limit) override {
    std::vector<Event> events;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      const long long from = after, most = limit;
      long long sequence = 0, attempt = 0, time_us = 0;
      std::string type, body;
      soci::statement select =
          (session_.prepare << "SELECT sequence, attempt, type, time_us, body FROM events WHERE job_id = :id AND "
                               "sequence > :after ORDER BY sequence LIMIT :limit",
           use(id), use(from), use(most), into(sequence), into(attempt), into(type), into(time_us), into(body));
      select.execute();
      while (select.fetch()) {
        NIBBLE_ASSIGN_OR_RETURN(Json json, base::ParseJson(body));
        events.push_back({sequence, attempt, type, absl::FromUnixMicros(time_us), std::move(json)});
      }
      // Asked for together with the events: a job that is deleted meanwhile is not one without events.
      return events.empty() ? Find(id).status() : absl::OkStatus();
    }));
    return events;
  }

  absl::StatusOr<std::int64_t> LastAttemptSequence(const std::string& id, std::int64_t attempt) override {
    long long last = 0;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      last = LastOf(id, attempt);
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
  // One transaction: all of it or nothing, whether f fails or throws.
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

  static bool IsDiskFull(const absl::Status& status) { return base::Reason(status) == "DISK_FULL"; }
  // As Write; where the disk is full, again as long as room can be made.
  template <typename F>
  absl::Status WriteEnd(F f) {
    absl::Status status = Write(f);
    while (IsDiskFull(status) && make_room_ != nullptr && make_room_()) status = Write(f);
    return status;
  }

  // The functions below run inside Read or Write and may throw.
  absl::StatusOr<JobRecord> Find(const std::string& id) {
    JobRow row;
    soci::statement select(session_);
    select.exchange(use(id));
    OpenJobs(select, "WHERE id = :id", row);
    if (!select.fetch()) return NoJob(id);
    return FromRow(row);
  }

  absl::StatusOr<std::optional<JobRecord>> Remembered(const std::string& request_id, const std::string& body_digest) {
    if (request_id.empty()) return std::optional<JobRecord>();
    std::string digest, id;
    const auto look = [&](const std::string& key) {
      session_ << "SELECT body_digest, job_id FROM idempotency WHERE request_id = :r", use(key), into(digest), into(id);
      return session_.got_data();
    };
    if (!look(request_id) && !look(KeyWithoutTenant(request_id))) return std::optional<JobRecord>();
    if (digest != body_digest) {
      return base::WithReason(
          absl::AlreadyExistsError(StrCat("the request_id was used for another request, which made ", id)),
          "IDEMPOTENCY_CONFLICT", {{"kind", "job"}, {"name", id}});
    }
    NIBBLE_ASSIGN_OR_RETURN(JobRecord job, Find(id));
    return std::optional<JobRecord>(std::move(job));
  }

  absl::StatusOr<std::vector<JobRecord>> Listed(const std::vector<JobState>& states, std::int64_t before, std::int64_t limit) {
    std::string where = "WHERE (:before = 0 OR number < :before2)";
    if (!states.empty()) {
      std::string names;  // Our own constants, never a caller's text.
      for (const JobState state : states) names = StrCat(names, names.empty() ? "" : ", ", "'", Name(state), "'");
      where = StrCat(where, " AND state IN (", names, ")");
    }
    return Select(StrCat(where, " ORDER BY number DESC LIMIT :limit"), before, limit);
  }

  absl::StatusOr<std::vector<JobRecord>> Select(const std::string& where, std::int64_t before, std::int64_t limit) {
    std::vector<JobRecord> jobs;
    NIBBLE_RETURN_IF_ERROR(Read([&]() -> absl::Status {
      const long long number = before, most = limit;
      JobRow row;
      soci::statement select(session_);
      for (const long long* value : {&number, &number, &most}) select.exchange(use(*value));
      OpenJobs(select, where, row);
      while (select.fetch()) {
        NIBBLE_ASSIGN_OR_RETURN(JobRecord job, FromRow(row));
        jobs.push_back(std::move(job));
      }
      return absl::OkStatus();
    }));
    return jobs;
  }

  // Jobs of which the condition is true with these values, in its order.
  template <typename... Values>
  absl::StatusOr<std::int64_t> CountWhere(const char* condition, const Values&... values) {
    long long count = 0;
    NIBBLE_RETURN_IF_ERROR(Read([&] {
      ((session_ << StrCat("SELECT COUNT(*) FROM jobs WHERE ", condition)), ..., use(values)), into(count);
      return absl::OkStatus();
    }));
    return count;
  }

  void SetText(const std::string& id, const char* column, const std::string& value) {
    session_ << StrCat("UPDATE jobs SET ", column, " = :v WHERE id = :id"), use(value), use(id);
  }
  void SetNumber(const std::string& id, const char* column, long long value) {
    session_ << StrCat("UPDATE jobs SET ", column, " = :v WHERE id = :id"), use(value), use(id);
  }

  absl::Status ApplyRest(const Transition& t, long long attempt, long long next) {
    if (t.new_attempt) {
      session_ << "INSERT INTO attempts (job_id, attempt, token, state, pid, start_ticks) VALUES (:id, :a, :t, 'RUNNING', 0, 0)",
          use(t.job_id), use(next), use(t.new_attempt_token);
    }
    if (t.attempt_state.has_value()) {
      session_ << "UPDATE attempts SET state = :s WHERE job_id = :id AND attempt = :a", use(*t.attempt_state),
          use(t.job_id), use(attempt);
    }
    if (t.retries.has_value()) SetNumber(t.job_id, "retries", *t.retries);
    if (t.error.has_value()) SetText(t.job_id, "error", base::Dump(ToJson(*t.error)));
    if (t.progress.has_value()) SetText(t.job_id, "progress", base::Dump(*t.progress));
    if (t.keep_checkpoint) SetNumber(t.job_id, "keep_checkpoint", 1);
    if (t.publish_digest.has_value()) SetText(t.job_id, "output_digest", *t.publish_digest);
    if (t.started.has_value()) SetNumber(t.job_id, "started_us", absl::ToUnixMicros(*t.started));
    if (t.ended.has_value()) SetNumber(t.job_id, "ended_us", absl::ToUnixMicros(*t.ended));
    return AppendEvents(t.job_id, t.events, nullptr);
  }

  long long LastOf(const std::string& id, long long attempt) {
    long long last = 0;
    session_ << "SELECT COALESCE(MAX(attempt_sequence), 0) FROM events WHERE job_id = :id AND attempt = :a", use(id),
        use(attempt), into(last);
    return last;
  }

  absl::Status AppendEvents(const std::string& id, const std::vector<NewEvent>& events, std::vector<Event>* appended) {
    if (events.empty()) return absl::OkStatus();
    long long sequence = 0;
    session_ << "SELECT last_sequence FROM jobs WHERE id = :id", use(id), into(sequence);
    if (!session_.got_data()) return NoJob(id);
    std::map<long long, long long> last_of;  // by attempt
    for (const NewEvent& event : events) {
      const long long attempt = event.attempt;
      if (event.attempt_sequence.has_value()) {
        const auto [it, asked] = last_of.emplace(attempt, 0);
        if (asked) it->second = LastOf(id, attempt);
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
      session_ << "INSERT INTO events (job_id, sequence, attempt, attempt_sequence, type, time_us, body) "
                  "VALUES (:id, :s, :a, :q, :type, :t, :b)",
          use(id), use(sequence), use(attempt), use(attempt_sequence, given), use(event.type), use(time_us), use(body);
      if (appended != nullptr) appended->push_back(std::move(full));
    }
    SetNumber(id, "last_sequence", sequence);
    return absl::OkStatus();
  }

  const MakeRoom make_room_;
  base::Mutex mutex_;
  soci::session session_;  // by mutex_: touched within Read, Write and Connect alone
};

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, MakeRoom make_room) {
  auto database = std::make_unique<SqliteDatabase>(std::move(make_room));
  NIBBLE_RETURN_IF_ERROR(database->Connect(path));
  return std::unique_ptr<Database>(std::move(database));
}

}  // namespace nibble::jobs
