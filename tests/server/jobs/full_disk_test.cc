// The database on a completely full disk: jobs can be ended, but nothing new is accepted (docs/faults.md, R8).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/jobs/controller.h"
#include "server/jobs/database.h"
#include "server/store/disk_reserve.h"
#include "server/store/state_directory.h"
#include "server/store/state_lock.h"
#include "tests/server/jobs/fake_runner.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

using enum JobState;

class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(disk_);
    // The reserve is made only if four times its size is free.
    if (::mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=24m") != 0) {
      GTEST_SKIP() << "needs root, to mount a small file system: " << std::strerror(errno);
    }
    mounted_ = true;
    auto reserve = store::DiskReserve::Open(base::RealFileSystem(), disk_ + "/reserve");
    ASSERT_TRUE(reserve.ok()) << reserve.status();
    reserve_ = *std::move(reserve);
    ASSERT_EQ(reserve_->bytes(), store::kReserveBytes);
    Reopen();
  }
  void TearDown() override {
    database_.reset();
    reserve_.reset();
    if (!mounted_) return;
    EXPECT_EQ(::umount2(disk_.c_str(), MNT_DETACH), 0) << std::strerror(errno);
  }
  void Reopen() {
    database_.reset();
    auto database = Database::Open(disk_ + "/nibble.db", [this] { return reserve_->Release(); });
    ASSERT_TRUE(database.ok()) << database.status();
    database_ = *std::move(database);
  }
  void Fill() const {
    const int fd = ::open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_GE(fd, 0) << std::strerror(errno);
    const std::string zeros(64 << 10, '\0');
    while (::write(fd, zeros.data(), zeros.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    ::close(fd);
  }
  std::string Filler() const { return disk_ + "/filler"; }

  absl::Status Insert(const std::string& id, const std::string& request_id = "") {
    StoredJob job;
    job.id = id;
    job.spec.base_model = std::string("b");  // GCC 12 falsely warns of an overlap for a literal
    job.spec.train_dataset = std::string("t");
    job.created = absl::FromUnixMicros(5);
    return database_->Insert(job, request_id, "d", Event("state")).status();
  }
  static NewEvent Event(const std::string& type) {
    return {0, std::nullopt, absl::FromUnixMicros(1), type, base::Json::object()};
  }
  absl::StatusOr<bool> Move(const std::string& id, JobState from, JobState to, std::int64_t attempt = 0) {
    Transition t;
    t.job_id = id;
    t.from = from;
    t.to = to;
    t.attempt = attempt;
    t.new_attempt = to == kPreparing;
    t.new_attempt_token = "token";
    t.events = {Event("state")};
    return database_->Apply(t);
  }
  absl::Status AppendStep(const std::string& id, std::int64_t sequence) {
    NewEvent line = Event("step");
    line.attempt = 1;
    line.attempt_sequence = sequence;
    const auto appended = database_->Append(id, {std::move(line)}, nullptr);
    EXPECT_TRUE(!appended.ok() || appended->size() == 1);
    return appended.status();
  }
  JobState State(const std::string& id) {
    const auto job = database_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->state : kFailed;
  }

  nibble::testing::TempDirectory temp_;
  const std::string disk_ = temp_ / "disk";
  bool mounted_ = false;
  std::unique_ptr<store::DiskReserve> reserve_;
  std::unique_ptr<Database> database_;
};

TEST_F(FullDiskTest, FullDiskAllowsEndingJobsButNothingNew) {  // R8
  for (const char* id : {"queued", "cancelled", "running", "other"}) ASSERT_TRUE(Insert(id).ok());
  for (const char* id : {"running", "other"}) ASSERT_TRUE(Move(id, kQueued, kPreparing).value_or(false));
  ASSERT_TRUE(Move("cancelled", kQueued, kCancelled).value_or(false));
  Fill();
  const absl::Status refused = Insert("new");
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_EQ(refused.message(), "database: there is no room on the disk");  // S7: no SQL
  EXPECT_EQ(base::Reason(Move("queued", kQueued, kPreparing).status()), "DISK_FULL");
  EXPECT_EQ(base::Reason(AppendStep("other", 1)), "DISK_FULL") << "no user has asked this job to end";
  EXPECT_EQ(reserve_->bytes(), store::kReserveBytes) << "these writes must not use the reserve";

  EXPECT_TRUE(Move("queued", kQueued, kCancelled).value_or(false));
  EXPECT_LT(reserve_->bytes(), store::kReserveBytes);
  Fill();
  EXPECT_TRUE(Move("running", kPreparing, kCancelling, 1).value_or(false));
  Fill();
  EXPECT_TRUE(AppendStep("running", 1).ok()) << "a job that is being cancelled still records its last events";
  Fill();
  EXPECT_TRUE(Move("running", kCancelling, kCancelled, 1).value_or(false));
  Fill();
  EXPECT_TRUE(database_->Delete("cancelled", {}).ok());

  ASSERT_EQ(::unlink(Filler().c_str()), 0);
  Reopen();
  EXPECT_EQ(State("queued"), kCancelled);
  EXPECT_EQ(State("running"), kCancelled);
  EXPECT_EQ(State("other"), kPreparing);
  EXPECT_TRUE(absl::IsNotFound(database_->Get("cancelled").status()));
  const auto events = database_->Events("running", 0, 100);
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 5u);
  for (std::size_t i = 0; i < events->size(); ++i) EXPECT_EQ((*events)[i].sequence, static_cast<std::int64_t>(i) + 1);
}

// The files that the last server could have left (lock, -wal and -shm) do not exist, so the next server must create
// them.
TEST_F(FullDiskTest, ServerOnAFullDiskStartsReadsAndCancels) {  // R8, R1
  for (const char* id : {"queued", "paused"}) ASSERT_TRUE(Insert(id, id).ok());
  ASSERT_TRUE(Move("paused", kQueued, kPaused).value_or(false));
  reserve_.reset();
  ASSERT_TRUE(store::StateDirectory::Open(base::RealFileSystem(), disk_).ok());  // creates the directories
  database_.reset();                                                             // also removes SQLite's -wal and -shm
  ASSERT_EQ(::unlink((disk_ + "/lock").c_str()), 0);
  Fill();

  const auto state = store::StateDirectory::Open(base::RealFileSystem(), disk_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_LT((*state)->reserve->bytes(), store::kReserveBytes);
  EXPECT_GE((*state)->reserve->bytes(), store::kReserveBytes / 8 * 7) << "most of it is for cancels";
  const auto database = Database::Open((*state)->paths.database(), [&] { return (*state)->reserve->Release(); });
  ASSERT_TRUE(database.ok()) << database.status();
  Fill();  // other programs have taken the space that the server freed
  // The jobs were created in 1970, so the controller tries to forget their request ids, which are older than a day.
  base::FakeClock clock(absl::FromUnixSeconds(1'700'000'000));
  FakeMachine machine(clock);
  FakeRunner runner(machine);
  {
    const auto controller = JobController::Open(**state, **database, runner, clock, {});
    ASSERT_TRUE(controller.ok()) << controller.status() << ": the ids can be forgotten later";
    EXPECT_TRUE((*database)->FindRequest("paused", "d")->has_value());
    EXPECT_EQ((*controller)->List({}, 10)->jobs.size(), 2u);
    const auto cancelled = (*controller)->Cancel("queued");
    ASSERT_TRUE(cancelled.ok()) << cancelled.status();
    EXPECT_EQ(cancelled->state, kCancelled);
  }
  ASSERT_EQ(::unlink(Filler().c_str()), 0);
  const auto controller = JobController::Open(**state, **database, runner, clock, {});
  ASSERT_TRUE(controller.ok()) << controller.status();
  EXPECT_FALSE((*database)->FindRequest("paused", "d")->has_value());
  EXPECT_EQ((*controller)->Get("queued")->state, kCancelled);
}

TEST_F(FullDiskTest, LockIsTakenEvenIfItsPidCannotBeWritten) {  // R8, R23
  const std::string old = disk_ + "/old", fresh = disk_ + "/fresh";
  {
    const int fd = ::open(old.c_str(), O_WRONLY | O_CREAT, 0640);
    ASSERT_GE(fd, 0) << std::strerror(errno);
    const std::string pid = "4194304-of-the-one-before";
    ASSERT_EQ(::write(fd, pid.data(), pid.size()), static_cast<ssize_t>(pid.size()));
    ::close(fd);
  }
  Fill();
  const auto pid_at = [](const std::string& path) {
    return base::ReasonMetadata(store::StateLock::Acquire(path).status())["pid"];
  };
  const auto over = store::StateLock::Acquire(old);
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_EQ(pid_at(old), std::to_string(::getpid())) << "overwriting the old pid needs no space";
  const auto anew = store::StateLock::Acquire(fresh);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_EQ(pid_at(fresh), "unknown");
}

TEST_F(FullDiskTest, EmptyReserveMeansDiskFullAndNoChange) {  // R8
  ASSERT_TRUE(Insert("job").ok());
  while (reserve_->Release()) {
  }
  Fill();
  EXPECT_EQ(base::Reason(Move("job", kQueued, kCancelled).status()), "DISK_FULL");
  EXPECT_EQ(State("job"), kQueued);
  ASSERT_EQ(::unlink(Filler().c_str()), 0);
  EXPECT_TRUE(Move("job", kQueued, kCancelled).value_or(false)) << "it works again without a restart";
  reserve_->Refill();
  EXPECT_EQ(reserve_->bytes(), store::kReserveBytes);
  Reopen();
  EXPECT_EQ(State("job"), kCancelled);
}

}  // namespace
}  // namespace nibble::jobs
