// Upgrades of the job database from earlier schema versions, the backups that they make, and the thinning of step
// events.
#include <gtest/gtest.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/jobs/database.h"
#include "server/jobs/database_backup.h"
#include "server/jobs/database_schema.h"
#include "server/jobs/job_query.h"
#include "tests/server/jobs/database_fixture.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

TEST_F(DatabaseTest, ThinningKeepsSomeStepsOfAFinalJobAndAllOtherEvents) {
  for (const char* id : {"long", "short", "running"}) ASSERT_TRUE(Insert(id).ok());
  AddSteps("long", 1000);
  AddSteps("short", 9);
  AddSteps("running", 1000);
  ASSERT_TRUE(
      database_->Append("long", {{1, 1001, absl::FromUnixMicros(3), "eval", base::Json::object()}}, nullptr).ok());
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
  // The work is done in pieces, with a restart of the server in between.
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
  EXPECT_EQ(NumEvents("running"), 1001) << "the job has not ended";
  EXPECT_EQ(database_->Get("long")->last_sequence, 1003);
  EXPECT_FALSE(*database_->ThinSteps(20, 300)) << "removed steps do not come back";
  while (*database_->ThinSteps(5, 300)) {
  }
  EXPECT_LE(sequences("step").size(), 5u);
}

TEST_F(DatabaseTest, UpgradeBacksUpTheDatabaseAndKeepsTheNewestTwoBackups) {
  for (const char* older : {"2", "3", "10x"}) std::ofstream(path_ + ".backup-v" + older) << "older";
  std::ofstream(path_ + ".backup-v5.tmp") << "an unfinished backup, left by a killed upgrade";
  OpenAsOf(5, {OldJob("job-1")});
  EXPECT_TRUE(database_->Get("job-1").ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup-v5.tmp"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup-v2"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".backup-v3"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".backup-v10x")) << "not one of our backups";
  EXPECT_EQ(std::filesystem::status(BackupPath(path_, 5)).permissions(), std::filesystem::status(path_).permissions());
  // The backup, which a rollback restores (docs/upgrades.md), has the old schema and the job.
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
  for (std::size_t version = 1; version < std::size(kMigrations); ++version) {
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

TEST_F(DatabaseTest, ProcessOfAnAttemptBecomesItsHandle) {
  const std::string attempt = "INSERT INTO attempts (job_id, attempt, token, state, pid, start_ticks) VALUES ";
  OpenAsOf(10, {OldJob("job-1"), attempt + "('job-1', 1, 't', 'RUNNING', 1234, 56789)",
                attempt + "('job-1', 2, 't', 'RUNNING', 0, 0)"});
  EXPECT_EQ(database_->GetAttempt("job-1", 1)->handle, "1234/56789");
  EXPECT_EQ(database_->GetAttempt("job-1", 2)->handle, "") << "its process was never recorded";
}

TEST_F(DatabaseTest, PlannedDiskBytesAreKeptAndEarlierJobsHaveNone) {  // T10
  OpenAsOf(9, {OldJob("old")});
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
  OpenAsOf(5,
           {OldJob("old",
                   R"({"base_model":"llama","train_dataset":"t","run":{"priority":7},"labels":{"team":"a","x":"y"}})"),
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
  for (const auto& [id, key] :
       {std::pair("of-red", "\nred\nci\nr1"), std::pair("of-no-tenant", "ann\nr1"), std::pair("of-nobody", "r1")}) {
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
