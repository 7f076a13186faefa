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
#include "tests/server/jobs/database_fixture.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

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

TEST_F(DatabaseTest, FilesAreClosedToOtherUsers) {  // C12 (docs/faults.md)
  const auto mode = [this](const std::string& suffix) {
    struct stat info{};
    EXPECT_EQ(::stat((path_ + suffix).c_str(), &info), 0) << suffix;
    return info.st_mode & 0777;
  };
  const mode_t before = ::umask(0);
  database_.reset();
  std::filesystem::remove(path_);
  Reopen();
  ASSERT_TRUE(Insert("job-1").ok());
  for (const char* suffix : {"", "-wal", "-shm"}) EXPECT_EQ(mode(suffix), 0640u) << suffix;
  // An earlier version left the file open to all users.
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
  EXPECT_FALSE(*database_->Apply(Start("job-1", 0)));  // The job is no longer QUEUED.
  Transition ready;
  ready.job_id = "job-1";
  ready.from = JobState::kPreparing;
  ready.to = JobState::kRunning;
  ready.attempt = 0;
  ready.events = {Server("state")};
  EXPECT_FALSE(*database_->Apply(ready));  // The job is at attempt 1 by now.
  EXPECT_EQ(database_->Get("job-1")->last_sequence, 2) << "a transition that is fenced off leaves no event";
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

TEST_F(DatabaseTest, ListIsNewestFirstPagedAndFilteredByState) {
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
      "state, attempt, retries, spec, error, progress, output_digest, published, last_sequence, created_us, "
      "started_us, ended_us";
  Execute("INSERT INTO jobs (id, " + columns +
          ") WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) " +
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
  EXPECT_EQ(Names({.labels = {{"env", "dev"}, {"team", "x"}}}), "2") << "the labels of job 5 were deleted with the job";
  base::CancelToken cancelled;
  cancelled.Cancel();
  EXPECT_TRUE(absl::IsCancelled(database_->List({}, 10, cancelled).status()));
}

// A call for a list that no job matches must not read the whole table, and must not parse the specs of jobs that do not
// match.
TEST_F(DatabaseTest, PageThatFindsNothingEndsAfterABoundedNumberOfJobs) {
  ASSERT_TRUE(Insert("job-1").ok());
  const std::string columns =
      "state, attempt, retries, error, progress, output_digest, published, last_sequence, created_us, started_us, "
      "ended_us";
  Execute("INSERT INTO jobs (id, spec, base_model, " + columns +
          ") "
          "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000) "
          "SELECT 'more-' || i, 'no spec', 'b', " +
          columns + " FROM jobs, n WHERE id = 'job-1'");
  int pages = 1;
  JobQuery query{.states = {JobState::kSucceeded, JobState::kQueued}, .base_model = "b"};
  query.labels["no"] = "such";
  EXPECT_EQ(database_->List(query, 10, {})->next, 0) << "one lookup shows that no job has this label";
  query = {.states = {JobState::kSucceeded}, .base_model = "b"};
  auto page = database_->List(query, 10, {});
  for (; page.ok() && page->next != 0; ++pages) {
    EXPECT_TRUE(page->jobs.empty());
    EXPECT_LT(page->next, query.before == 0 ? 25'002 : query.before);
    query.before = page->next;
    page = database_->List(query, 10, {});
  }
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(pages, 3) << "a page looks at 10,000 of the 25,001 jobs";
}

TEST_F(DatabaseTest, EveryListWalksAnIndexAndSortsNothing) {
  const std::vector<JobState> live = {JobState::kPreparing, JobState::kRunning, JobState::kPausing,
                                      JobState::kCancelling};
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
    EXPECT_EQ(plan.find("B-TREE"), std::string::npos) << "SQLite sorts in a temporary B-tree: " << sql << plan;
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
  StoredJob unknown = queued;
  unknown.id = "job-2";
  EXPECT_FALSE(*database_->AppendWhile(unknown, {Server("warning")}));
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
  for (const char* table : {"events", "attempts", "idempotency", "jobs", "job_counts", "deleted_jobs"})
    Execute(std::string("DROP TABLE ") + table);
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
  EXPECT_FALSE(database_->Counts().ok());
  EXPECT_FALSE(database_->Delete("job-1", {}).ok());
  EXPECT_FALSE(database_->Apply(Start("job-1", 0)).ok());
  EXPECT_FALSE(database_->RecordTrainer("job-1", 1, "1/1", {}).ok());
  EXPECT_FALSE(database_->MarkPublished("job-1", {}).ok());
  EXPECT_FALSE(database_->GetAttempt("job-1", 1).ok());
  EXPECT_FALSE(database_->Append("job-1", {Line(1, 1)}, nullptr).ok());
  EXPECT_FALSE(database_->AppendWhile(StoredJob{}, {Line(1, 1)}).ok());
  EXPECT_FALSE(database_->Events("job-1", 0, 1).ok());
  EXPECT_FALSE(database_->LastAttemptSequence("job-1", 1).ok());
  EXPECT_FALSE(database_->CollectEvents(1).ok());
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
  EXPECT_TRUE(absl::IsNotFound(database_->Events("job-1", 0, 10).status()))
      << "a deleted job differs from a job without events";
  EXPECT_EQ(database_->FindRequest("r1", "d").status().code(), absl::StatusCode::kNotFound)
      << "the request id is still remembered";
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
  EXPECT_FALSE(*database_->Apply(Start("c", 0))) << "job c is no longer queued, and is counted once";
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
  EXPECT_TRUE(absl::IsNotFound(database_->Events("job-1", 0, 10).status()))
      << "the rest of the deleted job's log is not shown";
  EXPECT_GT(NumEvents("job-1"), 0) << "Delete leaves the rest of a long log, to keep its transaction short";
  Reopen();
  int pieces = 0;
  while (*database_->CollectEvents(500)) ++pieces;
  EXPECT_EQ(pieces, 2);
  EXPECT_EQ(NumEvents("job-1"), 0);
  EXPECT_EQ(NumEvents("job-2"), 1201);
}

}  // namespace
}  // namespace nibble::jobs
