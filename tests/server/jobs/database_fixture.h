// A job database in a temporary directory.
#pragma once
#include <gtest/gtest.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/jobs/database.h"
#include "server/jobs/database_backup.h"
#include "server/jobs/database_schema.h"
#include "server/jobs/job_query.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {

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
  // Creates a database of an earlier schema version, runs `sql` on it, and opens it with the current version.
  void OpenAsOf(std::size_t version, const std::vector<std::string>& sql) {
    database_.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
    {
      soci::session session(soci::sqlite3, "db=\"" + path_ + "\"");
      for (std::size_t v = 0; v < version; ++v) {
        for (const std::string_view step : kMigrations[v]) session << std::string(step);
      }
      session << "CREATE TABLE schema_version (version INTEGER NOT NULL)";
      session << "INSERT INTO schema_version VALUES (" + std::to_string(version) + ")";
      for (const std::string& one : sql) session << one;
    }
    Reopen();
  }
  // A job's row in version 1; later columns have their defaults.
  static std::string OldJob(const std::string& id,
                            const std::string& spec = R"({"base_model":"b","train_dataset":"t"})") {
    return "INSERT INTO jobs (id, state, attempt, retries, spec, error, progress, output_digest, published, "
           "last_sequence, created_us, "
           "started_us, ended_us) VALUES ('" +
           id + "', 'QUEUED', 0, 0, '" + spec + "', '', '{}', '', 0, 0, 5, 0, 0)";
  }
  // A row of the table of request ids in version 1. The key becomes an SQL expression, with char(10) for each newline.
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
  // An event that the server adds.
  static NewEvent Server(const std::string& type) {
    return {0, std::nullopt, absl::FromUnixMicros(1), type, base::Json::object()};
  }
  // An event from a line of a trainer's journal.
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
  // The ids that all pages of the list have, newest first. A page has two jobs.
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

}  // namespace nibble::jobs
