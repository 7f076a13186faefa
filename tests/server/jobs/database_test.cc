#include "server/jobs/database.h"

#include <gtest/gtest.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/jobs/database_backup.h"
#include "server/jobs/database_schema.h"
#include "server/jobs/job_query.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

using nibble::testing::TempDirectory;

class DatabaseTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    database_.reset();
    auto opened = Database::Open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    database_ = *std::move(opened);
  }
  // Runs SQL on another connection, as another program or a fault would change the file.
  void Execute(const std::string& sql) {
    soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
    session << sql;
  }
  // Creates a database of an earlier schema version, runs `sql` on it, and opens it with this version.
  void OpenAsOf(std::size_t version, const std::vector<std::string>& sql) {
    database_.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
    {
      soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
      for (std::size_t v = 0; v < version; ++v) {
        for (const std::string_view step : Migrations()[v]) session << std::string(step);
      }
      session << "CREATE TABLE schema_version (version INTEGER NOT NULL)";
      session << "INSERT INTO schema_version VALUES (" + std::to_string(version) + ")";
      for (const std::string& one : sql) session << one;
    }
    Reopen();
  }
  // A job's row in version 1; later columns have their defaults.
  static std::string OldJob(const std::string& id, const std::string& spec = R"({"base_model":"b","train_dataset":"t"})") {
    return "INSERT INTO jobs (id, state, attempt, retries, spec, error, progress, output_digest, published, last_sequence, created_us, "
           "started_us, ended_us) VALUES ('" + id + "', 'QUEUED', 0, 0, '" + spec + "', '', '{}', '', 0, 0, 5, 0, 0)";
  }
  static std::string OldRequest(const std::string& key, const std::string& job) {
    std::string quoted = "''";
    for (const char c : key) quoted += std::string(" || ") + (c == '\n' ? "char(10)" : std::string("'") + c + "'");
    return "INSERT INTO idempotency VALUES (" + quoted + ", 'd', '" + job + "', 5)";
  }
  absl::StatusOr<Database::Inserted> Insert(const std::string& id, const std::string& request_id = "",
                                            const std::string& digest = "d") {
    StoredJob job;
    job.id = id;
    job.spec.base_model = std::string("b");  // GCC 12 falsely warns of an overlap
    job.spec.train_dataset = std::string("t");
    job.created = absl::FromUnixMicros(5);
    job.digests.config = "c0ffee";
    return database_->Insert(job, request_id, digest, Server("state"));
  }
  static NewEvent Server(const std::string& type) {
    return {0, std::nullopt, absl::FromUnixMicros(1), type, base::Json::object()};
  }
  static NewEvent Line(std::int64_t attempt, std::int64_t sequence) {
    base::Json fields = base::Json::object();
    fields["step"] = sequence;
    return {attempt, sequence, absl::FromUnixMicros(2), "step", fields};
  }
  static Transition Start(const std::string& id, std::int64_t attempt) {
    Transition t;
    t.job_id = id;
    t.from = JobState::kQueued;
    t.to = JobState::kPreparing;
    t.attempt = attempt;
    t.new_attempt = true;
    t.new_attempt_token = "token";
    t.events = {Server("state")};
    return t;
  }

  void AddSteps(const std::string& id, std::int64_t count) {
    std::vector<NewEvent> events;
    for (std::int64_t i = 1; i <= count; ++i) events.push_back(Line(1, i));
    ASSERT_TRUE(database_->Append(id, events, nullptr).ok());
  }
  void Cancel(const std::string& id) {
    Transition cancel;
    cancel.job_id = id;
    cancel.from = JobState::kQueued;
    cancel.to = JobState::kCancelled;
    cancel.ended = absl::FromUnixMicros(9);
    cancel.events = {Server("state")};
    ASSERT_TRUE(*database_->Apply(cancel));
  }
  long long NumEvents(const std::string& id) {
    soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
    long long count = 0;
    session << "SELECT COUNT(*) FROM events WHERE job_id = :id", soci::use(id), soci::into(count);
    return count;
  }
  // Ids from all pages of two jobs, newest first.
  std::string Names(JobQuery query) {
    std::string names;
    do {
      const auto page = database_->List(query, 2, {});
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) break;
      for (const StoredJob& job : page->jobs) names += (names.empty() ? "" : " ") + job.id;
      query.before = page->next;
    } while (query.before != 0);
    return names;
  }
  // SQLite's plan for the statement, one line per step.
  std::string Plan(const std::string& sql, const SqlTexts& texts) {
    soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
    const long long number = 1;
    long long id = 0, parent = 0, unused = 0;
    std::string detail, plan;
    soci::statement explain(session);
    explain.exchange(soci::use(number, "before"));
    explain.exchange(soci::use(number, "limit"));
    for (const auto& [name, value] : texts) explain.exchange(soci::use(value, name));
    for (long long* column : {&id, &parent, &unused}) explain.exchange(soci::into(*column));
    explain.exchange(soci::into(detail));
    explain.alloc();
    explain.prepare("EXPLAIN QUERY PLAN " + sql);
    explain.define_and_bind();
    explain.execute();
    while (explain.fetch()) plan += "\n" + detail;
    return plan;
  }

  TempDirectory temp_;
  const std::string path_ = temp_ / "a b.db";
  std::unique_ptr<Database> database_;
};

TEST_F(DatabaseTest, JobSurvivesAReopen) {
  ASSERT_TRUE(Insert("job-1").ok());
  Reopen();
  const auto job = database_->Get("job-1");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state, JobState::kQueued);
  EXPECT_EQ(job->spec.base_model, "b");
  EXPECT_EQ(job->created, absl::FromUnixMicros(5));
  EXPECT_EQ(job->last_sequence, 1);
  EXPECT_EQ(job->digests.config, "c0ffee");
  EXPECT_EQ(job->digests.data, "");
  EXPECT_FALSE(job->started.has_value());
  EXPECT_EQ(base::Reason(database_->Get("job-2").status()), "JOB");
}

TEST_F(DatabaseTest, FilesAreClosedToOtherUsers) {  // C12
  const auto mode = [this](const std::string& suffix) {
    struct stat info {};
    EXPECT_EQ(::stat((path_ + suffix).c_str(), &info), 0) << suffix;
    return info.st_mode & 0777;
  };
  const mode_t before = ::umask(0);
  database_.reset();
  std::filesystem::remove(path_);
  Reopen();
  ASSERT_TRUE(Insert("job-1").ok());
  for (const char* suffix : {"", "-wal", "-shm"}) EXPECT_EQ(mode(suffix), 0640u) << suffix;
  // As an earlier server left them.
  database_.reset();
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  Reopen();
  ASSERT_TRUE(Insert("job-2").ok());
  for (const char* suffix : {"", "-wal", "-shm"}) EXPECT_EQ(mode(suffix), 0640u) << suffix;
  ::umask(before);
}

TEST_F(DatabaseTest, RequestIdReturnsItsJobAndRefusesAnotherBody) {
  ASSERT_TRUE(Insert("job-1", "r1").ok());
  Reopen();
  const auto again = Insert("job-2", "r1");
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->job.id, "job-1");
  const auto other = Insert("job-3", "r1", "another body");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(base::Reason(other.status()), "IDEMPOTENCY_CONFLICT");
  EXPECT_EQ(database_->List({}, 10, {})->jobs.size(), 1u);
  ASSERT_TRUE(database_->ForgetRequests(absl::FromUnixMicros(6)).ok());
  EXPECT_FALSE(database_->FindRequest("r1", "x")->has_value());
}

TEST_F(DatabaseTest, StaleWriterIsFencedOff) {
  ASSERT_TRUE(Insert("job-1").ok());
  ASSERT_TRUE(*database_->Apply(Start("job-1", 0)));
  EXPECT_FALSE(*database_->Apply(Start("job-1", 0)));  // Not QUEUED any more.
  Transition ready;
  ready.job_id = "job-1";
  ready.from = JobState::kPreparing;
  ready.to = JobState::kRunning;
  ready.attempt = 0;
  ready.events = {Server("state")};
  EXPECT_FALSE(*database_->Apply(ready));  // Attempt 1 by now.
  EXPECT_EQ(database_->Get("job-1")->last_sequence, 2) << "a fenced transition leaves no event";
  ready.attempt = 1;
  EXPECT_TRUE(*database_->Apply(ready));
  ready.from = JobState::kSucceeded;
  EXPECT_EQ(database_->Apply(ready).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(database_->GetAttempt("job-1", 1)->token, "token");
  EXPECT_EQ(database_->GetAttempt("job-1", 2).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DatabaseTest, ReplayedJournalLinesAreNotDoubled) {
  ASSERT_TRUE(Insert("job-1").ok());
  base::Json progress = base::Json::object();
  progress["step"] = 2;
  ASSERT_EQ(database_->Append("job-1", {Line(1, 1), Line(1, 2)}, &progress)->size(), 2u);
  Reopen();
  const auto appended = database_->Append("job-1", {Line(1, 1), Line(1, 2), Line(1, 3), Line(2, 1)}, nullptr);
  ASSERT_TRUE(appended.ok());
  EXPECT_EQ(appended->size(), 2u);
  const auto events = database_->Events("job-1", 1, 100);
  ASSERT_EQ(events->size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ((*events)[static_cast<std::size_t>(i)].sequence, i + 2);
  EXPECT_EQ((*events)[3].body["attempt"], 2);
  EXPECT_EQ((*events)[3].body["sequence"], 5);
  EXPECT_EQ(database_->LastAttemptSequence("job-1", 1).value(), 3);
  EXPECT_EQ(database_->Get("job-1")->progress["step"], 2);
  EXPECT_EQ(database_->Events("job-1", 0, 2)->size(), 2u);
}

TEST_F(DatabaseTest, ListIsNewestFirstInPagesAndByState) {
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(Insert("job-" + std::to_string(i)).ok());
  ASSERT_TRUE(*database_->Apply(Start("job-2", 0)));
  const auto first = database_->List({}, 2, {});
  ASSERT_EQ(first->jobs.size(), 2u);
  EXPECT_EQ(first->jobs[0].id, "job-5");
  const auto second = database_->List({.before = first->next}, 10, {});
  ASSERT_EQ(second->jobs.size(), 3u);
  EXPECT_EQ(second->jobs[0].id, "job-3");
  EXPECT_EQ(second->next, 0);
  EXPECT_EQ(database_->List({.states = {JobState::kPreparing, JobState::kRunning}}, 10, {})->jobs.size(), 1u);
  EXPECT_EQ(*database_->Count(JobState::kQueued), 4);
}

TEST_F(DatabaseTest, ListAllAndListUnpublishedReturnEveryJob) {
  ASSERT_TRUE(Insert("job-1").ok());
  const std::string columns =
      "state, attempt, retries, spec, error, progress, output_digest, published, last_sequence, created_us, started_us, ended_us";
  Execute("INSERT INTO jobs (id, " + columns + ") WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) " +
          "SELECT 'more-' || i, " + columns + " FROM jobs, n WHERE id = 'job-1'");
  const auto all = database_->ListAll({JobState::kQueued, JobState::kRunning});
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 10'002u);
  EXPECT_EQ(all->front().id, "more-10001");
  EXPECT_EQ(all->back().id, "job-1");
  EXPECT_TRUE(database_->ListAll({JobState::kRunning})->empty());
  Execute("UPDATE jobs SET state = 'SUCCEEDED'");
  EXPECT_EQ(database_->ListUnpublished()->size(), 10'002u);
}

TEST_F(DatabaseTest, ListsCombineTenantStatesBaseAndLabels) {
  using Labels = std::map<std::string, std::string>;
  const auto add = [&](const std::string& id, const std::string& tenant, const std::string& base, Labels labels) {
    StoredJob job;
    job.id = id;
    job.tenant = tenant;
    job.spec.base_model = base;
    job.spec.train_dataset = std::string("t");
    job.spec.labels = std::move(labels);
    ASSERT_TRUE(database_->Insert(job, "", "d", Server("state")).ok());
  };
  add("1", "red", "small", {{"env", "dev"}});
  add("2", "blue", "small", {{"env", "dev"}, {"team", "x"}});
  add("3", "red", "large", {{"env", "prod"}, {"team", "x"}});
  add("4", "red", "small", {});
  add("5", "", "small", {{"env", "dev"}, {"team", "x"}});
  ASSERT_TRUE(*database_->Apply(Start("4", 0)));
  EXPECT_EQ(Names({}), "5 4 3 2 1");
  EXPECT_EQ(Names({.before = 3}), "2 1");
  EXPECT_EQ(Names({.tenant = "red"}), "4 3 1");
  EXPECT_EQ(Names({.tenant = ""}), "5");
  EXPECT_EQ(Names({.tenant = "green"}), "");
  EXPECT_EQ(Names({.states = {JobState::kQueued}}), "5 3 2 1");
  EXPECT_EQ(Names({.states = {JobState::kPreparing, JobState::kQueued, JobState::kQueued}}), "5 4 3 2 1");
  EXPECT_EQ(Names({.states = {JobState::kPreparing, JobState::kFailed}, .tenant = "red"}), "4");
  EXPECT_EQ(Names({.tenant = "red", .base_model = "small"}), "4 1");
  EXPECT_EQ(Names({.states = {JobState::kQueued, JobState::kFailed}, .base_model = "small"}), "5 2 1");
  EXPECT_EQ(Names({.states = {JobState::kQueued}, .tenant = "red", .base_model = "small"}), "1");
  EXPECT_EQ(Names({.labels = {{"env", "dev"}}}), "5 2 1");
  EXPECT_EQ(Names({.labels = {{"env", "dev"}, {"team", "x"}}}), "5 2");
  EXPECT_EQ(Names({.tenant = "blue", .base_model = "small", .labels = {{"env", "dev"}, {"team", "x"}}}), "2");
  EXPECT_EQ(Names({.states = {JobState::kPreparing}, .labels = {{"env", "dev"}}}), "");
  std::vector<JobState> all;
  for (int i = 0; i < kNumJobStates; ++i) all.push_back(static_cast<JobState>(i));
  EXPECT_EQ(Names({.states = all}), "5 4 3 2 1");
  Transition cancel;
  cancel.job_id = "5";
  cancel.from = JobState::kQueued;
  cancel.to = JobState::kCancelled;
  ASSERT_TRUE(*database_->Apply(cancel));
  ASSERT_TRUE(database_->Delete("5", {}).ok());
  EXPECT_EQ(Names({.labels = {{"env", "dev"}, {"team", "x"}}}), "2") << "its labels were deleted with it";
  base::CancelToken gone;
  gone.Cancel();
  EXPECT_TRUE(absl::IsCancelled(database_->List({}, 10, gone).status()));
}

// A filter that no job passes must not read the whole table in one call, and must not parse specs that it does not
// return.
TEST_F(DatabaseTest, PageThatFindsNothingEndsAfterABoundedNumberOfJobs) {
  ASSERT_TRUE(Insert("job-1").ok());
  const std::string columns =
      "state, attempt, retries, error, progress, output_digest, published, last_sequence, created_us, started_us, ended_us";
  Execute("INSERT INTO jobs (id, spec, base_model, " + columns + ") "
          "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000) "
          "SELECT 'more-' || i, 'no spec', 'b', " + columns + " FROM jobs, n WHERE id = 'job-1'");
  int pages = 1;
  JobQuery query{.states = {JobState::kSucceeded, JobState::kQueued}, .base_model = "b"};
  query.labels["no"] = "such";
  EXPECT_EQ(database_->List(query, 10, {})->next, 0) << "a label that no job has costs one lookup";
  query = {.states = {JobState::kSucceeded}, .base_model = "b"};
  auto page = database_->List(query, 10, {});
  for (; page.ok() && page->next != 0; ++pages) {
    EXPECT_TRUE(page->jobs.empty());
    EXPECT_LT(page->next, query.before == 0 ? 25'002 : query.before);
    query.before = page->next;
    page = database_->List(query, 10, {});
  }
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(pages, 3);
}

TEST_F(DatabaseTest, EveryListWalksAnIndexAndSortsNothing) {
  const std::vector<JobState> live = {JobState::kPreparing, JobState::kRunning, JobState::kPausing, JobState::kCancelling};
  const std::vector<std::pair<JobQuery, std::string>> cases = {
      {{}, "SEARCH jobs USING INTEGER PRIMARY KEY"},
      {{.tenant = "red"}, "jobs_by_tenant "},
      {{.states = {JobState::kSucceeded}}, "jobs_by_state "},
      {{.states = {JobState::kSucceeded, JobState::kFailed}}, "jobs_by_state "},
      {{.states = live, .tenant = "red"}, "jobs_by_tenant_state "},
      {{.states = live, .base_model = "b"}, "jobs_by_state "},
      {{.base_model = "b"}, "jobs_by_base "},
      {{.states = {JobState::kSucceeded}, .tenant = "red", .base_model = "b"}, "jobs_by_tenant_base "},
      {{.tenant = "red", .labels = {{"a", "b"}, {"c", "d"}}}, "SEARCH label USING PRIMARY KEY"},
  };
  for (const auto& [query, wanted] : cases) {
    SqlTexts texts;
    const std::string sql = CandidateSql(query, texts), plan = Plan(sql, texts);
    EXPECT_NE(plan.find(wanted), std::string::npos) << sql << plan;
    EXPECT_EQ(plan.find("SCAN"), std::string::npos) << sql << plan;
    EXPECT_EQ(plan.find("B-TREE"), std::string::npos) << sql << plan;
  }
}

TEST_F(DatabaseTest, AppendWhileIsFencedByStateAndAttempt) {
  ASSERT_TRUE(Insert("job-1").ok());
  const StoredJob queued = *database_->Get("job-1");
  EXPECT_TRUE(*database_->AppendWhile(queued, {Server("warning")}));
  ASSERT_TRUE(*database_->Apply(Start("job-1", 0)));
  EXPECT_FALSE(*database_->AppendWhile(queued, {Server("warning")}));
  Transition back;
  back.job_id = "job-1";
  back.from = JobState::kPreparing;
  back.to = JobState::kQueued;
  back.attempt = 1;
  ASSERT_TRUE(*database_->Apply(back));
  EXPECT_FALSE(*database_->AppendWhile(queued, {Server("warning")})) << "the attempt has changed";
  EXPECT_EQ(database_->Get("job-1")->last_sequence, 3);
  EXPECT_EQ(database_->Events("job-1", 0, 10)->size(), 3u);
  EXPECT_TRUE(*database_->AppendWhile(*database_->Get("job-1"), {Server("warning")}));
  StoredJob gone = queued;
  gone.id = "job-2";
  EXPECT_FALSE(*database_->AppendWhile(gone, {Server("warning")}));
}

TEST_F(DatabaseTest, FailedTransitionLeavesNoTrace) {
  ASSERT_TRUE(Insert("job-1").ok());
  Execute("CREATE TRIGGER no_events BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'injected'); END");
  const auto applied = database_->Apply(Start("job-1", 0));
  EXPECT_EQ(applied.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(database_->Append("job-1", {Line(1, 1)}, nullptr).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Insert("job-2", "r2").status().code(), absl::StatusCode::kInternal);
  Execute("DROP TRIGGER no_events");
  const auto job = database_->Get("job-1");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->state, JobState::kQueued);
  EXPECT_EQ(job->attempt, 0);
  EXPECT_FALSE(database_->GetAttempt("job-1", 1).ok());
  EXPECT_EQ(database_->Get("job-2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(database_->FindRequest("r2", "d")->has_value());
  EXPECT_TRUE(*database_->Apply(Start("job-1", 0)));
}

TEST_F(DatabaseTest, EveryCallTurnsSqlErrorsIntoStatus) {
  ASSERT_TRUE(Insert("job-1").ok());
  for (const char* table : {"events", "attempts", "idempotency", "jobs", "job_counts"}) Execute(std::string("DROP TABLE ") + table);
  EXPECT_FALSE(Insert("job-2", "r").ok());
  EXPECT_FALSE(database_->FindRequest("r", "d").ok());
  EXPECT_FALSE(database_->ForgetRequests(absl::Now()).ok());
  EXPECT_FALSE(database_->Get("job-1").ok());
  EXPECT_FALSE(database_->List({}, 1, {}).ok());
  EXPECT_FALSE(database_->ListAll({JobState::kQueued}).ok());
  EXPECT_FALSE(database_->Queue().ok());
  EXPECT_FALSE(database_->Ids().ok());
  EXPECT_FALSE(database_->EndOfLog("job-1").ok());
  EXPECT_FALSE(database_->ListUnpublished().ok());
  EXPECT_FALSE(database_->Count(JobState::kQueued).ok());
  EXPECT_FALSE(database_->CountOpen("ann", "red").ok());
  EXPECT_FALSE(database_->Delete("job-1", {}).ok());
  EXPECT_FALSE(database_->Apply(Start("job-1", 0)).ok());
  EXPECT_FALSE(database_->RecordProcess("job-1", 1, {1, 1}, {}).ok());
  EXPECT_FALSE(database_->MarkPublished("job-1", {}).ok());
  EXPECT_FALSE(database_->GetAttempt("job-1", 1).ok());
  EXPECT_FALSE(database_->Append("job-1", {Line(1, 1)}, nullptr).ok());
  EXPECT_FALSE(database_->AppendWhile(StoredJob{}, {Line(1, 1)}).ok());
  EXPECT_FALSE(database_->Events("job-1", 0, 1).ok());
  EXPECT_FALSE(database_->LastAttemptSequence("job-1", 1).ok());
  EXPECT_FALSE(database_->ThinSteps(1, 1).ok());
  EXPECT_FALSE(database_->EndedBefore(absl::Now(), 1).ok());
}

TEST_F(DatabaseTest, DamagedRowIsDataLoss) {
  ASSERT_TRUE(Insert("job-1").ok());
  Execute("UPDATE jobs SET spec = '{'");
  EXPECT_EQ(database_->Get("job-1").status().code(), absl::StatusCode::kDataLoss);
  Execute("UPDATE jobs SET spec = '{}', state = 'PARTYING'");
  EXPECT_EQ(database_->Get("job-1").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DatabaseTest, RefusesNonDatabaseFileAndNewerSchema) {
  std::ofstream(temp_ / "no.db") << std::string(4096, 'x');
  EXPECT_EQ(Database::Open(temp_ / "no.db").status().code(), absl::StatusCode::kDataLoss);
  Execute("UPDATE schema_version SET version = 999");
  EXPECT_EQ(Database::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DatabaseTest, DeleteRemovesOnlyFinalJobsAndAllTheirRows) {
  ASSERT_TRUE(Insert("job-1", "r1").ok());
  EXPECT_EQ(base::Reason(database_->Delete("job-1", {})), "ILLEGAL_STATE");
  Transition cancel;
  cancel.job_id = "job-1";
  cancel.from = JobState::kQueued;
  cancel.to = JobState::kCancelled;
  ASSERT_TRUE(*database_->Apply(cancel));
  EXPECT_EQ(base::Reason(database_->Delete("job-1", "QUEUED-0")), "ETAG_MISMATCH");
  ASSERT_TRUE(database_->Delete("job-1", "CANCELLED-0").ok());
  EXPECT_FALSE(database_->Get("job-1").ok());
  EXPECT_TRUE(absl::IsNotFound(database_->Events("job-1", 0, 10).status())) << "not a job without events";
  EXPECT_EQ(database_->FindRequest("r1", "d").status().code(), absl::StatusCode::kNotFound) << "still remembered";
  ASSERT_TRUE(database_->ForgetRequests(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(database_->FindRequest("r1", "d")->has_value());
}

TEST_F(DatabaseTest, CountsAreByMethodAndState) {
  EXPECT_TRUE(database_->Counts()->empty());
  ASSERT_TRUE(Insert("job-1").ok());
  ASSERT_TRUE(Insert("job-2").ok());
  const auto counts = database_->Counts();
  ASSERT_TRUE(counts.ok()) << counts.status();
  ASSERT_EQ(counts->size(), 1u);
  EXPECT_EQ((*counts)[0].method, "qlora");
  EXPECT_EQ((*counts)[0].state, JobState::kQueued);
  EXPECT_EQ((*counts)[0].count, 2);
}

TEST_F(DatabaseTest, CountsFollowEveryChange) {
  const auto count = [&](JobState state) { return database_->Count(state).value_or(-1); };
  OpenAsOf(5, {OldJob("a"), OldJob("b"), "UPDATE jobs SET state = 'FAILED' WHERE id = 'b'"});
  EXPECT_EQ(count(JobState::kQueued), 1);
  EXPECT_EQ(count(JobState::kFailed), 1);
  ASSERT_TRUE(Insert("c").ok());
  ASSERT_TRUE(*database_->Apply(Start("c", 0)));
  EXPECT_FALSE(*database_->Apply(Start("c", 0))) << "it has already moved, and counts once";
  EXPECT_EQ(count(JobState::kQueued), 1);
  EXPECT_EQ(count(JobState::kPreparing), 1);
  ASSERT_TRUE(database_->Delete("b", {}).ok());
  EXPECT_EQ(count(JobState::kFailed), 0);
  Execute("CREATE TRIGGER no_events BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'injected'); END");
  EXPECT_FALSE(database_->Apply(Start("a", 0)).ok());
  EXPECT_EQ(count(JobState::kQueued), 1) << "a failed transition changes no count";
  Execute("DROP TRIGGER no_events");
  Reopen();
  EXPECT_EQ(count(JobState::kQueued), 1);
  EXPECT_EQ(count(JobState::kPreparing), 1);
  EXPECT_EQ(database_->Counts()->size(), 2u);
}

TEST_F(DatabaseTest, LongLogOfADeletedJobIsRemovedInPieces) {
  ASSERT_TRUE(Insert("job-1").ok());
  ASSERT_TRUE(Insert("job-2").ok());
  for (const char* id : {"job-1", "job-2"}) AddSteps(id, 1200);
  Cancel("job-1");
  ASSERT_TRUE(database_->Delete("job-1", {}).ok());
  EXPECT_TRUE(absl::IsNotFound(database_->Events("job-1", 0, 10).status())) << "the rest of its log is not shown";
  EXPECT_GT(NumEvents("job-1"), 0) << "a long transaction would block other calls";
  Reopen();
  int pieces = 0;
  while (*database_->CollectEvents(500)) ++pieces;
  EXPECT_EQ(pieces, 2);
  EXPECT_EQ(NumEvents("job-1"), 0);
  EXPECT_EQ(NumEvents("job-2"), 1201);
}

TEST_F(DatabaseTest, ThinningKeepsSomeStepsOfAFinalJobAndAllOtherEvents) {
  for (const char* id : {"long", "short", "running"}) ASSERT_TRUE(Insert(id).ok());
  AddSteps("long", 1000);
  AddSteps("short", 9);
  AddSteps("running", 1000);
  ASSERT_TRUE(database_->Append("long", {{1, 1001, absl::FromUnixMicros(3), "eval", base::Json::object()}}, nullptr).ok());
  for (const char* id : {"long", "short"}) Cancel(id);
  const auto sequences = [&](const char* type) {
    const auto events = database_->Events("long", 0, 10'000);
    EXPECT_TRUE(events.ok()) << events.status();
    std::vector<std::int64_t> all;
    for (const Event& event : *events) {
      EXPECT_EQ(event.body["sequence"], event.sequence);
      if (event.type == type) all.push_back(event.sequence);
    }
    return all;
  };
  const std::vector<std::int64_t> evals = sequences("eval"), states = sequences("state");
  ASSERT_EQ(evals.size(), 1u);
  // In pieces, with a kill of the server in between.
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(*database_->ThinSteps(10, 300));
  Reopen();
  while (*database_->ThinSteps(10, 300)) {
  }
  const std::vector<std::int64_t> steps = sequences("step");
  EXPECT_LE(steps.size(), 10u);
  EXPECT_GE(steps.size(), 9u);
  EXPECT_EQ(steps.front(), 2) << "each part of the log keeps its first step";
  EXPECT_EQ(steps[1], 102);
  EXPECT_EQ(sequences("eval"), evals);
  EXPECT_EQ(sequences("state"), states);
  EXPECT_EQ(NumEvents("short"), 11);
  EXPECT_EQ(NumEvents("running"), 1001) << "it has not ended";
  EXPECT_EQ(database_->Get("long")->last_sequence, 1003);
  EXPECT_FALSE(*database_->ThinSteps(20, 300)) << "removed steps do not come back";
  while (*database_->ThinSteps(5, 300)) {
  }
  EXPECT_LE(sequences("step").size(), 5u);
}

TEST_F(DatabaseTest, UpgradeBacksUpTheDatabaseAndKeepsTheNewestTwoBackups) {
  for (const char* older : {"2", "3", "10x"}) std::ofstream(path_ + ".backup-v" + older) << "older";
  std::ofstream(path_ + ".backup-v5.tmp") << "of an upgrade that was killed";
  OpenAsOf(5, {OldJob("job-1")});
  EXPECT_TRUE(database_->Get("job-1").ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup-v5.tmp"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup-v2"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".backup-v3"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".backup-v10x")) << "not one of our backups";
  EXPECT_EQ(std::filesystem::status(BackupPath(path_, 5)).permissions(), std::filesystem::status(path_).permissions());
  // The rollback of docs/upgrades.md: the old schema, with the job in it.
  soci::session old(soci::sqlite3, "db=\"" + BackupPath(path_, 5) + "\"");
  long long version = 0, jobs = 0;
  old << "SELECT version FROM schema_version", soci::into(version);
  old << "SELECT COUNT(*) FROM jobs WHERE id = 'job-1'", soci::into(jobs);
  EXPECT_EQ(version, 5);
  EXPECT_EQ(jobs, 1);
  EXPECT_THROW(old << "SELECT COUNT(*) FROM job_labels", std::exception);
  const auto written = std::filesystem::last_write_time(BackupPath(path_, 5));
  Reopen();
  EXPECT_EQ(std::filesystem::last_write_time(BackupPath(path_, 5)), written) << "only an upgrade makes a backup";
}

TEST_F(DatabaseTest, BackupThatDoesNotFitIsRefusedAndNothingChanges) {
  store::DiskWithRoom files(1000);
  soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
  const absl::Status refused = BackUp(session, path_, 5, files);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_NE(std::string(refused.message()).find("1000"), std::string::npos) << refused;
  EXPECT_FALSE(std::filesystem::exists(BackupPath(path_, 5)));
  EXPECT_FALSE(std::filesystem::exists(BackupPath(path_, 5) + ".tmp"));
}

TEST_F(DatabaseTest, UpgradesEveryEarlierSchemaVersion) {
  for (std::size_t version = 1; version < Migrations().size(); ++version) {
    SCOPED_TRACE(version);
    OpenAsOf(version, {OldJob("job-1")});
    const auto job = database_->Get("job-1");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->spec.base_model, "b");
    EXPECT_EQ(job->memory_bytes, 0);
    EXPECT_FALSE(job->keep_checkpoint);
    EXPECT_EQ(job->digests.config, "") << "created before jobs had digests";
    EXPECT_EQ(database_->Counts()->at(0).method, "qlora");
  }
}

TEST_F(DatabaseTest, PlannedDiskBytesAreKeptAndEarlierJobsHaveNone) {  // T10
  OpenAsOf(Migrations().size() - 1, {OldJob("old")});
  EXPECT_EQ(database_->Get("old")->disk_bytes, 0);
  StoredJob job;
  job.id = std::string("new");
  job.state = JobState::kPlanning;
  job.spec.base_model = std::string("b");
  job.spec.train_dataset = std::string("t");
  ASSERT_TRUE(database_->Insert(job, "", "d", Server("state")).ok());
  Transition planned;
  planned.job_id = "new";
  planned.from = JobState::kPlanning;
  planned.to = JobState::kQueued;
  planned.memory_bytes = 7;
  planned.disk_bytes = std::int64_t{16'000'000'000};
  planned.events = {Server("state")};
  ASSERT_TRUE(*database_->Apply(planned));
  Reopen();
  EXPECT_EQ(database_->Get("new")->disk_bytes, 16'000'000'000);
  const auto queue = database_->Queue();
  ASSERT_TRUE(queue.ok()) << queue.status();
  ASSERT_EQ(queue->size(), 2u);
  for (const QueuedJob& one : *queue) {
    EXPECT_EQ(one.disk_bytes, one.id == "new" ? 16'000'000'000 : 0);
    EXPECT_EQ(one.memory_bytes, one.id == "new" ? 7 : 0);
    EXPECT_EQ(one.attempt, 0);
  }
  ASSERT_TRUE(*database_->Apply(Start("new", 0)));
  EXPECT_EQ(database_->Get("new")->disk_bytes, 16'000'000'000);
}

TEST_F(DatabaseTest, FiltersFindJobsOfEarlierVersions) {
  OpenAsOf(5, {OldJob("old", R"({"base_model":"llama","train_dataset":"t","run":{"priority":7},"labels":{"team":"a","x":"y"}})"),
               OldJob("plain"), OldJob("damaged", "{")});
  EXPECT_EQ(Names({.base_model = "llama"}), "old");
  EXPECT_EQ(Names({.labels = {{"team", "a"}, {"x", "y"}}}), "old");
  EXPECT_EQ(Names({.base_model = "b"}), "plain");
  const auto queue = database_->Queue();
  ASSERT_TRUE(queue.ok()) << queue.status();
  ASSERT_EQ(queue->size(), 3u);
  for (const QueuedJob& one : *queue) EXPECT_EQ(one.priority, one.id == "old" ? 7 : 0);
}

TEST_F(DatabaseTest, RequestsArePerTenantFromVersionFour) {
  OpenAsOf(3, {OldJob("of-red"), OldJob("of-no-tenant"), OldJob("of-nobody"), OldRequest("ci\nr1", "of-red"),
               OldRequest("ann\nr1", "of-no-tenant"), OldRequest("r1", "of-nobody"),
               "UPDATE jobs SET owner = 'ci', tenant = 'red' WHERE id = 'of-red'",
               "UPDATE jobs SET owner = 'ann' WHERE id = 'of-no-tenant'", OldRequest("ci\nr2", "gone"),
               OldRequest("r2", "gone-of-nobody")});
  for (const auto& [id, key] : {std::pair("of-red", "\nred\nci\nr1"), std::pair("of-no-tenant", "ann\nr1"), std::pair("of-nobody", "r1")}) {
    const auto job = database_->FindRequest(key, "d");
    ASSERT_TRUE(job.ok()) << job.status();
    ASSERT_TRUE(job->has_value()) << id;
    EXPECT_EQ((*job)->id, id);
  }
  EXPECT_FALSE(database_->FindRequest("ci\nr1", "d")->has_value());
  // The tenant of a deleted job is unknown: its request creates no new job in any tenant of its owner.
  for (const char* key : {"\nred\nci\nr2", "\nblue\nci\nr2", "ci\nr2", "r2"}) {
    EXPECT_EQ(base::Reason(database_->FindRequest(key, "d").status()), "JOB") << key;
    EXPECT_EQ(base::Reason(Insert("anew", key).status()), "JOB") << key;
    EXPECT_EQ(base::Reason(database_->FindRequest(key, "another").status()), "IDEMPOTENCY_CONFLICT") << key;
  }
  EXPECT_FALSE(database_->FindRequest("\nred\nann\nr2", "d")->has_value()) << "another owner's request";
  // Since version 4 the request of a deleted job belongs to one tenant, too.
  ASSERT_TRUE(Insert("late", "ann\nr3").ok());
  Execute("DELETE FROM jobs WHERE id = 'late'");
  Reopen();
  EXPECT_EQ(base::Reason(database_->FindRequest("ann\nr3", "d").status()), "JOB");
  EXPECT_FALSE(database_->FindRequest("\nred\nann\nr3", "d")->has_value());
  ASSERT_TRUE(database_->ForgetRequests(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(database_->FindRequest("\nred\nci\nr2", "d")->has_value());
}

TEST_F(DatabaseTest, FileIsInWalMode) {
  soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
  std::string mode;
  session << "PRAGMA journal_mode", soci::into(mode);
  EXPECT_EQ(mode, "wal");
}

}  // namespace
}  // namespace nibble::jobs
