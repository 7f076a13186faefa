#include "server/store/database_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/base/error.h"
#include "server/store/state_directory.h"
#include "tests/server/store/real_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

using nibble::testing::TempDirectory;
using ::testing::HasSubstr;

// Directories of state and database, with stand-ins for what a server writes there.
class DatabasePairTest : public ::testing::Test {
 protected:
  absl::Status Open(const std::string& state, const std::string& database) {
    const auto opened =
        StateDirectory::Open(Files(), temp_ / state, {.min_free_bytes = 0}, database.empty() ? "" : temp_ / database);
    return opened.status();
  }
  void AddDatabase(const std::string& directory) { store::WriteFile(temp_ / (directory + "/nibble.db"), "a database"); }
  void AddJob(const std::string& state) {
    ASSERT_TRUE(Files().CreateDirectories(temp_ / (state + "/jobs/job-1")).ok());
  }
  std::string Id(const std::string& path) { return *Files().Read(temp_ / path, 128); }
  void ExpectRefused(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  TempDirectory temp_;
};

TEST_F(DatabasePairTest, FirstStartMakesAPairThatOpensAgain) {
  ASSERT_EQ(Open("state", "database"), absl::OkStatus());
  AddDatabase("database");
  AddJob("state");
  EXPECT_EQ(Open("state", "database"), absl::OkStatus());
  EXPECT_EQ(Id("state/database_pair"), Id("database/database_pair"));
}

TEST_F(DatabasePairTest, DatabaseFilesAreInTheDatabaseDirectory) {
  const auto opened = StateDirectory::Open(Files(), temp_ / "state", {.min_free_bytes = 0}, temp_ / "database");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const StatePaths& paths = (*opened)->paths;
  const std::string root = std::filesystem::canonical(temp_ / "database").string();
  EXPECT_EQ(paths.database(), root + "/nibble.db");
  EXPECT_EQ(paths.reserve(), root + "/reserve");
  EXPECT_EQ(paths.trainer_socket(), root + "/trainers.sock");
  EXPECT_EQ(paths.jobs(), std::filesystem::canonical(temp_ / "state").string() + "/jobs");
  EXPECT_TRUE(Files().Exists(root + "/reserve"));
  EXPECT_FALSE(Files().Exists(temp_ / "state/reserve"));
}

TEST_F(DatabasePairTest, SameStateAndDatabaseDirectoryMakesNoPair) {
  ASSERT_EQ(Open("state", "state"), absl::OkStatus());
  EXPECT_FALSE(Files().Exists(temp_ / "state/database_pair"));
  EXPECT_EQ(Open("state", ""), absl::OkStatus());
}

TEST_F(DatabasePairTest, SecondServerOnEitherDirectoryIsRefused) {
  const auto first = StateDirectory::Open(Files(), temp_ / "state", {.min_free_bytes = 0}, temp_ / "database");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(base::Reason(Open("state", "other")), "STATE_DIR_IN_USE");
  EXPECT_EQ(base::Reason(Open("other", "database")), "STATE_DIR_IN_USE");
}

TEST_F(DatabasePairTest, MovedDatabaseBecomesAPair) {
  ASSERT_EQ(Open("state", ""), absl::OkStatus());
  AddDatabase("state");
  AddJob("state");
  ExpectRefused(Open("state", "database"), "move nibble.db and nibble.db-wal");
  std::filesystem::rename(temp_ / "state/nibble.db", temp_ / "database/nibble.db");
  EXPECT_EQ(Open("state", "database"), absl::OkStatus());
  ExpectRefused(Open("state", ""), "is not set, but the database of");
  // Moves the database back, as the message says.
  std::filesystem::rename(temp_ / "database/nibble.db", temp_ / "state/nibble.db");
  std::filesystem::remove(temp_ / "state/database_pair");
  EXPECT_EQ(Open("state", ""), absl::OkStatus());
}

TEST_F(DatabasePairTest, DatabaseOfAnotherStateDirectoryIsRefused) {
  for (const std::string name : {"a", "b"}) {
    ASSERT_EQ(Open("state-" + name, "database-" + name), absl::OkStatus());
    AddDatabase("database-" + name);
  }
  ExpectRefused(Open("state-a", "database-b"), "has the database of another state directory");
  ExpectRefused(Open("new", "database-b"), "has the database of another state directory");
  EXPECT_EQ(Open("state-a", "database-a"), absl::OkStatus());
}

TEST_F(DatabasePairTest, JobsWithoutTheirDatabaseAreRefused) {
  ASSERT_EQ(Open("state", "database"), absl::OkStatus());
  AddDatabase("database");
  AddJob("state");
  ExpectRefused(Open("state", "empty"), "has jobs, but");
  EXPECT_FALSE(Files().Exists(temp_ / "empty/database_pair")) << "a refused directory does not become a pair";
  std::filesystem::remove(temp_ / "database/nibble.db");
  ExpectRefused(Open("state", "database"), "has no database");
}

TEST_F(DatabasePairTest, StartAfterACrashBetweenTheTwoIdsWritesTheMissingId) {
  ASSERT_EQ(Open("state", "database"), absl::OkStatus());
  AddDatabase("database");
  AddJob("state");
  std::filesystem::remove(temp_ / "database/database_pair");
  EXPECT_EQ(Open("state", "database"), absl::OkStatus());
  EXPECT_EQ(Id("state/database_pair"), Id("database/database_pair"));
}

}  // namespace
}  // namespace nibble::store
