// Removals and publishing that a fault or a kill of the server interrupts, and damaged inputs of jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/ids.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"
#include "tests/server/jobs/restart_fixture.h"
#include "tests/server/store/faulty_files.h"

namespace nibble::jobs {
namespace {

// A server that is killed during a removal leaves some files renamed for removal, and others unchanged. The tests let
// the removal fail instead.
class RemovalTest : public RestartTest {
 protected:
  // Removing a path that contains `kept` fails.
  struct Disk {
    std::string kept;
  };
  class Hook : public store::AppendsAsAsked {
   public:
    explicit Hook(const Disk& disk) : disk_(disk) {}
    template <typename Work>
    auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
      const bool is_kept = !disk_.kept.empty() && path.find(disk_.kept) != std::string::npos;
      if (operation == "remove" && is_kept) return absl::InternalError("killed");
      return work();
    }

   private:
    const Disk& disk_;
  };

  void SetUp() override {
    files_ = &hooked_;
    RestartTest::SetUp();
  }
  void TearDown() override { Kill(); }  // the controller uses hooked_

  // Number of temporary names among the attempt's checkpoints.
  int NumLeftovers(const std::string& id, std::int64_t attempt) {
    const auto names = base::RealFileSystem().List(state_->paths.attempt(id, attempt) + "/checkpoints");
    EXPECT_TRUE(names.ok()) << names.status();
    return names.ok() ? static_cast<int>(std::count_if(names->begin(), names->end(), base::IsTemporaryName)) : -1;
  }
  // Returns a job in its second attempt. When this attempt has saved step 3, the server renames the checkpoint of step
  // 1, which the first attempt saved, for removal. The removal itself fails.
  std::string PruneWithFailedRemoval() {
    const std::string id = Submit(Spec("out"));  // keep_last 2
    controller_->Tick();
    Ready(Trainer(id));
    Checkpoint(Trainer(id), 1);
    Checkpoint(Trainer(id), 2);
    machine_.Kill(Trainer(id));
    controller_->Tick();
    clock_.Advance(absl::Seconds(10));
    controller_->Tick();
    Ready(Trainer(id), 2);
    Checkpoint(Trainer(id), 3);
    disk_.kept = "/checkpoints/";
    controller_->Tick();
    disk_.kept = "";
    EXPECT_EQ(NumLeftovers(id, 1), 1);
    EXPECT_EQ(controller_->Checkpoints(id)->size(), 2u);
    return id;
  }

  Disk disk_;
  base::HookedFiles<Hook> hooked_{base::RealFileSystem(), disk_};
};

TEST_F(RemovalTest, LeftoversOfAnEarlierAttemptAreRemovedAtServerStart) {  // R5
  const std::string id = PruneWithFailedRemoval();
  FakeMachine::Trainer& second = Trainer(id);
  // A checkpoint that its live trainer is writing.
  std::filesystem::create_directory(second.directory + "/checkpoints/" + base::TemporaryName("step-00000004"));
  KillAndReopen();
  EXPECT_EQ(NumLeftovers(id, 1), 0);
  EXPECT_EQ(NumLeftovers(id, 2), 1);
  EXPECT_EQ(controller_->Checkpoints(id)->size(), 2u);
  machine_.Kill(second);
  controller_->Tick();
  EXPECT_EQ(NumLeftovers(id, 2), 0);
}

TEST_F(RemovalTest, LeftoversOfAnEarlierAttemptAreRemovedAtTheEndOfTheJob) {  // R5
  const std::string id = PruneWithFailedRemoval();
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(NumLeftovers(id, 1), 0);
}

TEST_F(RemovalTest, LeftoversOfAJobWithoutATrainerAreRemovedByTheNextAttemptOrServer) {  // R5
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    const std::string id = Submit();
    controller_->Tick();
    Ready(Trainer(id));
    for (const int step : {1, 2, 3}) Checkpoint(Trainer(id), step);
    machine_.Kill(Trainer(id));
    controller_->Tick();
    ASSERT_EQ(State(id), kQueued);
    disk_.kept = "/checkpoints/";
    clock_.Advance(absl::Seconds(10));
    controller_->Tick();  // The removal fails, so the attempt does not begin.
    disk_.kept = "";
    EXPECT_EQ(State(id), kQueued);
    EXPECT_EQ(NumLeftovers(id, 1), 1);
    if (restarted) {
      KillAndReopen();
    } else {
      clock_.Advance(absl::Seconds(100));
      controller_->Tick();
      EXPECT_EQ(Trainer(id).order.resume_step, 3);
      machine_.Kill(Trainer(id));
    }
    EXPECT_EQ(NumLeftovers(id, 1), 0);
    EXPECT_EQ(controller_->Checkpoints(id)->size(), 2u);
    ASSERT_TRUE(controller_->Cancel(id).ok());
    controller_->Tick();
    EXPECT_EQ(State(id), kCancelled);
  }
}

TEST_F(RemovalTest, UnfinishedDeletionIsFinishedByTheNextServer) {
  std::vector<std::string> ids;
  for (const char* output : {"deleted", "stays"}) {
    ids.push_back(Submit(Spec(output)));
    controller_->Tick();
    Finish(Trainer(ids.back()));
    machine_.Exit(Trainer(ids.back()), 0);
    controller_->Tick();
    ASSERT_EQ(State(ids.back()), kSucceeded);
  }
  const std::string deleted = state_->paths.job(ids[0]), stays = state_->paths.job(ids[1]);
  disk_.kept = ids[0];
  EXPECT_FALSE(controller_->Delete(ids[0]).ok());
  disk_.kept = "";
  EXPECT_EQ(base::Reason(controller_->Get(ids[0]).status()), "JOB") << "it is deleted from the database";
  ASSERT_TRUE(base::RealFileSystem().Exists(deleted));
  KillAndReopen();
  controller_->Tick();
  EXPECT_FALSE(base::RealFileSystem().Exists(deleted));
  EXPECT_TRUE(base::RealFileSystem().Exists(stays));
  EXPECT_EQ(base::Reason(controller_->Get(ids[0]).status()), "JOB");
  EXPECT_EQ(State(ids[1]), kSucceeded);
  EXPECT_TRUE(state_->models->Verify("deleted").ok()) << "its model stays";
}

TEST_F(RestartTest, FailedPublishIsRetriedWithoutARestart) {
  const std::string id = EndsAndFailsToPublish("out");
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_TRUE(state_->models->Verify("out").ok());
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING model state:SUCCEEDED");
}

TEST_F(RestartTest, OutputLostBeforePublishingIsReportedInAWarning) {
  const std::string id = EndsAndFailsToPublish("out");
  ASSERT_TRUE(base::RealFileSystem().RemoveAll(Trainer(id).order.output_directory).ok());
  KillAndReopen();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_TRUE(absl::IsNotFound(state_->models->Get("out").status()));
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING warning state:SUCCEEDED");
  EXPECT_EQ(Events(id)[4].body["reason"], "PUBLISH_FAILED");
  EXPECT_TRUE(state_->models->Reserve("out", "another").ok()) << "the name is free again";
}

// A database in which a model cannot be marked as published while `fails` is true.
class Unmarked : public FaultyDatabase {
 public:
  explicit Unmarked(std::unique_ptr<Database> real)
      : FaultyDatabase(std::move(real), std::numeric_limits<int>::max(), /*after=*/false) {}
  absl::StatusOr<bool> MarkPublished(const std::string& id, const std::vector<NewEvent>& events) override {
    if (fails) return absl::ResourceExhaustedError("injected");
    return FaultyDatabase::MarkPublished(id, events);
  }
  bool fails = true;
};

TEST_F(RestartTest, ModelDeletedBeforeItsJobIsDoneDoesNotBlockTheJob) {
  for (const bool restarted : {false, true}) {
    for (const bool taken : {false, true}) {
      SCOPED_TRACE(::testing::Message() << (restarted ? "restarted, " : "")
                                        << (taken ? "and the name taken" : "and the name free"));
      Unmarked* database = &OpenOn<Unmarked>();
      const std::string id = Submit(Spec("out"));
      controller_->Tick();
      Ready(Trainer(id));
      controller_->Tick();
      Finish(Trainer(id));
      machine_.Exit(Trainer(id), 0);
      controller_->Tick();
      EXPECT_EQ(State(id), kRunning) << "its publishing cannot be recorded";
      ASSERT_TRUE(state_->models->Verify("out").ok());
      if (restarted) {
        Kill();
        OpenStores();
        database = &OpenOn<Unmarked>();
        EXPECT_EQ(State(id), kRunning);
      }
      ASSERT_TRUE(state_->models->Delete("out").ok());
      if (taken) {
        ASSERT_TRUE(state_->models->Reserve("out", "another").ok());
      }
      controller_->Tick();
      EXPECT_EQ(State(id), kRunning);
      database->fails = false;
      controller_->Tick();
      EXPECT_EQ(State(id), kSucceeded);
      EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING warning state:SUCCEEDED");
      EXPECT_EQ(Events(id)[4].body["reason"], "PUBLISH_FAILED");
      EXPECT_TRUE(state_->models->Reserve("out", "another").ok()) << "the job no longer holds the name";
      KillAndReopen();
    }
  }
}

TEST_F(RestartTest, JobWithDamagedBaseOrDataFailsAtOnce) {  // R12
  int damaged = 0;
  for (const auto& [path, named] : {std::pair(state_->paths.model("base") + "/nibble.json", "model \"base\""),
                                    std::pair(state_->paths.dataset("train") + "/data.jsonl", "dataset \"train\"")}) {
    SCOPED_TRACE(path);
    const std::string whole = *base::RealFileSystem().Read(path, 1 << 20);
    const std::string id = Submit();
    WriteFile(path, whole.substr(1));
    KillAndReopen();
    controller_->Tick();
    const auto job = controller_->Get(id);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->state, kFailed);
    EXPECT_EQ(job->attempt, 1);
    EXPECT_EQ(job->retries, 0);
    ASSERT_TRUE(job->error.has_value());
    EXPECT_EQ(job->error->code, "DATA_LOSS");
    EXPECT_EQ(job->error->reason, "ARTIFACT_CORRUPT");
    EXPECT_THAT(job->error->message, HasSubstr(named));
    EXPECT_EQ(observer_.damaged, ++damaged);
    WriteFile(path, whole);
  }
}

// A disk that renames the output into place, and then fails to sync a directory.
class UnsyncedTest : public RestartTest {
 protected:
  struct Disk {
    std::string unsynced;  // suffix of the directory's path
    bool moved = false;
  };
  class Hook : public store::AppendsAsAsked {
   public:
    explicit Hook(Disk& disk) : disk_(disk) {}
    template <typename Work>
    auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
      if (operation == "rename" && path.ends_with("/models/out")) disk_.moved = true;
      const bool fails =
          operation == "sync_directory" && disk_.moved && !disk_.unsynced.empty() && path.ends_with(disk_.unsynced);
      return fails ? absl::InternalError("EIO") : work();
    }

   private:
    Disk& disk_;
  };

  void SetUp() override {
    files_ = &hooked_;
    RestartTest::SetUp();
  }
  void TearDown() override { Kill(); }  // the controller uses hooked_

  Disk disk_;
  base::HookedFiles<Hook> hooked_{base::RealFileSystem(), disk_};
};

TEST_F(UnsyncedTest, PublishThatFailsAfterItsRenameLosesNoModel) {
  for (const char* directory : {"/models", "/attempts/1"}) {
    for (const bool restarted : {false, true}) {
      SCOPED_TRACE(::testing::Message() << directory << (restarted ? " and a restart" : ""));
      disk_.unsynced = directory;
      disk_.moved = false;
      const std::string id = Submit(Spec("out"));
      controller_->Tick();
      Ready(Trainer(id));
      controller_->Tick();
      const std::string output = Trainer(id).order.output_directory;
      Finish(Trainer(id));
      machine_.Exit(Trainer(id), 0);
      for (int i = 0; i < 3; ++i) controller_->Tick();
      EXPECT_EQ(State(id), kRunning) << "SUCCEEDED is reported only when the model is safe";
      EXPECT_FALSE(base::RealFileSystem().Exists(output));
      EXPECT_TRUE(base::RealFileSystem().Exists(state_->paths.model("out")));
      disk_.unsynced = "";
      if (restarted) KillAndReopen();
      controller_->Tick();
      EXPECT_EQ(State(id), kSucceeded);
      EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING model state:SUCCEEDED");
      EXPECT_TRUE(state_->models->Verify("out").ok());
      ASSERT_TRUE(state_->models->Delete("out").ok());
    }
  }
}

}  // namespace
}  // namespace nibble::jobs
