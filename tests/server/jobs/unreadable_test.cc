// A failed read does not prove that a file is damaged or missing, so the read is retried. A full disk is reported as
// DISK_FULL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"
#include "tests/server/store/faulty_files.h"

namespace nibble::jobs {
namespace {

using enum JobState;

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class FullDatabaseTest : public ControllerFixture {};

TEST_F(FullDatabaseTest, RefusedLinesOfAJournalAreReadAgain) {
  RefusingDatabase& database = OpenOn<RefusingDatabase>();
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  ASSERT_THAT(Story(id), EndsWith("state:RUNNING"));
  // While the trainer runs.
  for (const int step : {1, 2}) {
    Step(Trainer(id), step);
    database.refuses = true;
    controller_->Tick();
  }
  database.refuses = false;
  controller_->Tick();
  EXPECT_THAT(Story(id), EndsWith("state:RUNNING step step"));
  // After its end.
  Step(Trainer(id), 3);
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), kExitOk);
  database.refuses = true;
  controller_->Tick();
  database.refuses = false;
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(2));
    controller_->Tick();
  }
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_THAT(Story(id), HasSubstr("state:RUNNING step step step model state:SUCCEEDED"));
  EXPECT_THAT(Story(id), Not(HasSubstr("warning")));
}

class UnreadableTest : public ControllerFixture {
 protected:
  // Reads of paths that contain `unreadable` fail; `before_read` is called before each read. Opening paths that contain
  // `full` fails with DISK_FULL.
  struct Disk {
    std::string unreadable, full;
    std::function<void(const std::string& path)> before_read;
  };
  class Hook : public store::AppendsAsAsked {
   public:
    explicit Hook(const Disk& disk) : disk_(disk) {}
    template <typename Work>
    auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
      if (operation == "open" && !disk_.full.empty() && path.find(disk_.full) != std::string::npos) {
        return base::WithReason(absl::ResourceExhaustedError("ENOSPC"), "DISK_FULL");
      }
      if (operation != "read") return work();
      if (disk_.before_read) disk_.before_read(path);
      if (!disk_.unreadable.empty() && path.find(disk_.unreadable) != std::string::npos)
        return absl::InternalError("EIO");
      return work();
    }

   private:
    const Disk& disk_;
  };

  void SetUp() override {
    files_ = &hooked_;
    ControllerFixture::SetUp();
  }
  std::string Start() {
    const std::string id = Submit(Spec("out"));
    controller_->Tick();
    Ready(Trainer(id));
    return id;
  }
  void TickLater(int seconds) {
    clock_.Advance(absl::Seconds(seconds));
    controller_->Tick();
  }

  // The trainer succeeds, but `path` in its attempt becomes readable only later.
  void EndUnreadable(const std::string& id, const std::string& path) {
    Finish(Trainer(id));
    disk_.unreadable = path;
    machine_.Exit(Trainer(id), 0);
    for (int i = 0; i < 3; ++i) {
      TickLater(2);
      EXPECT_EQ(State(id), kRunning);
    }
    disk_.unreadable = "";
    TickLater(2);
    EXPECT_EQ(State(id), kSucceeded);
  }

  Disk disk_;
  base::HookedFiles<Hook> hooked_{base::RealFileSystem(), disk_};
};

TEST_F(UnreadableTest, ReadOfTheOutcomeIsRetriedAndADamagedJournalIsReportedOnce) {
  const std::string id = Start();
  std::ofstream(Trainer(id).directory + "/journal.jsonl", std::ios::app) << "{\"sequence\":\n";
  EndUnreadable(id, "/outcome.json");
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING warning model state:SUCCEEDED");
}

TEST_F(UnreadableTest, ReadOfTheOutputIsRetried) {
  const std::string id = Start();
  EndUnreadable(id, "/output/manifest.json");
  EXPECT_EQ(observer_.damaged, 0);
}

TEST_F(UnreadableTest, JobIsReturnedWithoutUnreadableCheckpoints) {
  const std::string id = Start();
  Write(Trainer(id), "eval", R"({"step":0,"eval_loss":2.5})");
  Checkpoint(Trainer(id), 1, R"({"eval_loss":2.5})");
  TickLater(1);
  disk_.unreadable = "/step-00000001/manifest.json";
  auto job = controller_->Get(id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state, kRunning);
  EXPECT_FALSE(job->best_checkpoint.has_value());
  disk_.unreadable = "";
  job = controller_->Get(id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->best_checkpoint.has_value());
}

TEST_F(UnreadableTest, UnreadableCheckpointIsNotSkipped) {
  const std::string id = Start();
  Checkpoint(Trainer(id), 1);
  Checkpoint(Trainer(id), 2);
  machine_.Kill(Trainer(id));
  controller_->Tick();
  disk_.unreadable = "/step-00000002/manifest.json";
  TickLater(10);
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "START_FAILED");
  disk_.unreadable = "";
  TickLater(100);
  EXPECT_EQ(Trainer(id).order.resume_step, 2);
  EXPECT_EQ(observer_.damaged, 0);
}

TEST_F(UnreadableTest, StartWithoutRoomIsDiskFullAndRetried) {  // ADR 0012
  const std::string id = Submit(Spec("out"));
  disk_.full = "/attempt.json";
  TickLater(1);
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "DISK_FULL");
  disk_.full = "";
  TickLater(100);
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_EQ(Trainer(id).order.attempt, 2);
}

// Verifying an output may hash gigabytes.
TEST_F(UnreadableTest, OtherJobsCanChangeAndReportWhileAnOutputIsVerified) {
  Kill();
  options_.queue.max_running = 2;
  Open();
  const std::string id = Start(), other = Submit();
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(other);
  const std::string line = Ready(trainer);
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  std::future<std::pair<absl::Status, absl::Status>> moved;
  disk_.before_read = [&](const std::string& path) {
    if (path.find("/output/manifest.json") == std::string::npos || moved.valid()) return;
    moved = std::async(std::launch::async, [&] {
      const absl::Status reported = controller_->IngestReport(other, 1, trainer.order.token, {line}).status();
      return std::pair(reported, controller_->Cancel(other).status());
    });
    EXPECT_EQ(moved.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  };
  controller_->Tick();
  disk_.before_read = nullptr;
  ASSERT_TRUE(moved.valid());
  const auto answers = moved.get();
  EXPECT_TRUE(answers.first.ok()) << answers.first;
  EXPECT_TRUE(answers.second.ok()) << answers.second;
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(State(other), kCancelling);
}

TEST_F(UnreadableTest, JobCanBeCancelledWhileItsCheckpointIsRead) {
  const std::string id = Start();
  Checkpoint(Trainer(id), 1);
  machine_.Kill(Trainer(id));
  controller_->Tick();
  std::future<bool> cancelled;
  disk_.before_read = [&](const std::string& path) {
    if (cancelled.valid() || path.find("/checkpoints/") == std::string::npos) return;
    cancelled = std::async(std::launch::async, [&] { return controller_->Cancel(id).ok(); });
    EXPECT_EQ(cancelled.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  };
  TickLater(10);
  ASSERT_TRUE(cancelled.valid());
  EXPECT_TRUE(cancelled.get());
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_EQ(database_->Get(id)->attempt, 1) << "no trainer was started for it";
}

}  // namespace
}  // namespace nibble::jobs
