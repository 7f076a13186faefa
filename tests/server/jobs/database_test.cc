#include "server/jobs/database.h"

#include <gtest/gtest.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>

#include <fstream>

#include "server/base/error.h"
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
  // SQL by another connection: how another program, or a fault, would change the file.
  void Execute(const std::string& sql) {
    soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
    session << sql;
  }
  absl::StatusOr<Database::Inserted> Insert(const std::string& id, const std::string& request_id = "",
                                            const std::string& digest = "d") {
    JobRecord job;
    job.id = id;
    job.spec.base_model = "b";
    job.spec.train_dataset = "t";
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
  EXPECT_EQ(database_->List({}, 0, 10)->size(), 1u);
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
  const auto first = database_->List({}, 0, 2);
  ASSERT_EQ(first->size(), 2u);
  EXPECT_EQ((*first)[0].id, "job-5");
  const auto second = database_->List({}, (*first)[1].number, 10);
  ASSERT_EQ(second->size(), 3u);
  EXPECT_EQ((*second)[0].id, "job-3");
  EXPECT_EQ(database_->List({JobState::kPreparing, JobState::kRunning}, 0, 10)->size(), 1u);
  EXPECT_EQ(*database_->Count(JobState::kQueued), 4);
}

TEST_F(DatabaseTest, WhoMustMissNoneGetsAll) {
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

TEST_F(DatabaseTest, AppendWhileIsFencedByStateAndAttempt) {
  ASSERT_TRUE(Insert("job-1").ok());
  const JobRecord queued = *database_->Get("job-1");
  EXPECT_TRUE(*database_->AppendWhile(queued, {Server("warning")}));
  ASSERT_TRUE(*database_->Apply(Start("job-1", 0)));
  EXPECT_FALSE(*database_->AppendWhile(queued, {Server("warning")}));
  Transition back;
  back.job_id = "job-1";
  back.from = JobState::kPreparing;
  back.to = JobState::kQueued;
  back.attempt = 1;
  ASSERT_TRUE(*database_->Apply(back));
  EXPECT_FALSE(*database_->AppendWhile(queued, {Server("warning")})) << "another attempt's";
  EXPECT_EQ(database_->Get("job-1")->last_sequence, 3);
  EXPECT_EQ(database_->Events("job-1", 0, 10)->size(), 3u);
  EXPECT_TRUE(*database_->AppendWhile(*database_->Get("job-1"), {Server("warning")}));
  JobRecord gone = queued;
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
  for (const char* table : {"events", "attempts", "idempotency", "jobs"}) Execute(std::string("DROP TABLE ") + table);
  EXPECT_FALSE(Insert("job-2", "r").ok());
  EXPECT_FALSE(database_->FindRequest("r", "d").ok());
  EXPECT_FALSE(database_->ForgetRequests(absl::Now()).ok());
  EXPECT_FALSE(database_->Get("job-1").ok());
  EXPECT_FALSE(database_->List({}, 0, 1).ok());
  EXPECT_FALSE(database_->ListAll({}).ok());
  EXPECT_FALSE(database_->ListUnpublished().ok());
  EXPECT_FALSE(database_->Count(JobState::kQueued).ok());
  EXPECT_FALSE(database_->CountOpen("ann", "red").ok());
  EXPECT_FALSE(database_->Delete("job-1", {}).ok());
  EXPECT_FALSE(database_->Apply(Start("job-1", 0)).ok());
  EXPECT_FALSE(database_->RecordProcess("job-1", 1, {1, 1}).ok());
  EXPECT_FALSE(database_->MarkPublished("job-1", {}).ok());
  EXPECT_FALSE(database_->GetAttempt("job-1", 1).ok());
  EXPECT_FALSE(database_->Append("job-1", {Line(1, 1)}, nullptr).ok());
  EXPECT_FALSE(database_->AppendWhile(JobRecord{}, {Line(1, 1)}).ok());
  EXPECT_FALSE(database_->Events("job-1", 0, 1).ok());
  EXPECT_FALSE(database_->LastAttemptSequence("job-1", 1).ok());
}

TEST_F(DatabaseTest, DamagedRowIsDataLoss) {
  ASSERT_TRUE(Insert("job-1").ok());
  Execute("UPDATE jobs SET spec = '{'");
  EXPECT_EQ(database_->Get("job-1").status().code(), absl::StatusCode::kDataLoss);
  Execute("UPDATE jobs SET spec = '{}', state = 'PARTYING'");
  EXPECT_EQ(database_->Get("job-1").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DatabaseTest, FileThatIsNoDatabaseAndSchemaOfTheFutureAreRefused) {
  std::ofstream(temp_ / "no.db") << std::string(4096, 'x');
  EXPECT_EQ(Database::Open(temp_ / "no.db").status().code(), absl::StatusCode::kDataLoss);
  Execute("UPDATE schema_version SET version = 999");
  EXPECT_EQ(Database::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DatabaseTest, DeleteTakesFinalJobsOnlyAndAllTheirRows) {
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
  EXPECT_TRUE(absl::IsNotFound(database_->Events("job-1", 0, 10).status())) << "a job that is gone, not one without events";
  EXPECT_EQ(database_->FindRequest("r1", "d").status().code(), absl::StatusCode::kNotFound) << "remembered all the same";
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

TEST_F(DatabaseTest, SchemaOfEveryEarlierVersionIsTakenForward) {
  ASSERT_TRUE(Insert("job-1").ok());
  Execute("ALTER TABLE jobs DROP COLUMN digests");
  Execute("UPDATE schema_version SET version = 2");
  Reopen();
  auto second = database_->Get("job-1");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->digests.config, "") << "it was created before digests were";
  Execute("ALTER TABLE jobs DROP COLUMN digests");
  Execute("DROP INDEX idempotency_by_age");
  Execute("DROP INDEX jobs_by_owner");
  for (const char* column : {"method", "memory_bytes", "keep_checkpoint", "owner", "tenant"}) {
    Execute(std::string("ALTER TABLE jobs DROP COLUMN ") + column);
  }
  Execute("UPDATE schema_version SET version = 1");
  auto reopened = Database::Open(path_);
  ASSERT_TRUE(reopened.ok()) << reopened.status();
  const auto job = (*reopened)->Get("job-1");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->memory_bytes, 0);
  EXPECT_FALSE(job->keep_checkpoint);
  EXPECT_EQ((*reopened)->Counts()->at(0).method, "qlora");
}

TEST_F(DatabaseTest, RequestsOfATenantAreItsOwnFromVersionFour) {
  for (const auto& [id, key] : {std::pair("of-red", "ci\nr1"), std::pair("of-no-tenant", "ann\nr1"), std::pair("of-nobody", "r1")}) {
    ASSERT_TRUE(Insert(id, key).ok());
  }
  Execute("UPDATE jobs SET owner = 'ci', tenant = 'red' WHERE id = 'of-red'");
  Execute("UPDATE jobs SET owner = 'ann' WHERE id = 'of-no-tenant'");
  for (const auto& [id, key] : {std::pair("gone", "ci\nr2"), std::pair("gone-of-nobody", "r2")}) {
    ASSERT_TRUE(Insert(id, key).ok());
    Execute(std::string("DELETE FROM jobs WHERE id = '") + id + "'");
  }
  Execute("UPDATE schema_version SET version = 3");
  Reopen();
  for (const auto& [id, key] : {std::pair("of-red", "\nred\nci\nr1"), std::pair("of-no-tenant", "ann\nr1"), std::pair("of-nobody", "r1")}) {
    const auto job = database_->FindRequest(key, "d");
    ASSERT_TRUE(job.ok()) << job.status();
    ASSERT_TRUE(job->has_value()) << id;
    EXPECT_EQ((*job)->id, id);
  }
  EXPECT_FALSE(database_->FindRequest("ci\nr1", "d")->has_value());
  // Of a deleted job nobody knows the tenant: its request makes no job anew, in whichever its owner is.
  for (const char* key : {"\nred\nci\nr2", "\nblue\nci\nr2", "ci\nr2", "r2"}) {
    EXPECT_EQ(base::Reason(database_->FindRequest(key, "d").status()), "JOB") << key;
    EXPECT_EQ(base::Reason(Insert("anew", key).status()), "JOB") << key;
    EXPECT_EQ(base::Reason(database_->FindRequest(key, "another").status()), "IDEMPOTENCY_CONFLICT") << key;
  }
  EXPECT_FALSE(database_->FindRequest("\nred\nann\nr2", "d")->has_value()) << "another owner's";
  // Since then a deleted job's request is its tenant's too.
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
