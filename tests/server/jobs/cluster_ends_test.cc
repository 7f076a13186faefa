// Attempts whose trainers wait for their cluster, or are ended by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"

namespace nibble::jobs {
namespace {

using enum JobState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Cause = TrainerEnd::Cause;

class ClusterEndsTest : public ControllerFixture {
 protected:
  // A job that trains, with a checkpoint of step 2.
  std::string Running() {
    const std::string id = Submit();
    controller_->Tick();
    Ready(Trainer(id));
    Checkpoint(Trainer(id), 2);
    controller_->Tick();
    EXPECT_EQ(State(id), kRunning);
    return id;
  }
  std::vector<std::string> Warnings(const std::string& id) {
    std::vector<std::string> warnings;
    for (const Event& event : Events(id)) {
      if (event.type != "warning") continue;
      EXPECT_EQ(event.body["reason"], "WAITING_FOR_RESOURCES");
      warnings.push_back(event.body["message"]);
    }
    return warnings;
  }
};

TEST_F(ClusterEndsTest, DisruptedJobResumesWithoutACountedRetry) {
  const std::map<Cause, std::string> reasons = {{Cause::kEvicted, "EVICTED"},
                                                {Cause::kPreempted, "PREEMPTED"},
                                                {Cause::kNodeLost, "NODE_LOST"},
                                                {Cause::kDeleted, "TRAINER_DELETED"}};
  for (const auto& [cause, reason] : reasons) {
    SCOPED_TRACE(reason);
    const std::string id = Running();
    machine_.End(Trainer(id), {.cause = cause, .detail = "why"});
    controller_->Tick();
    EXPECT_EQ(State(id), kQueued);
    EXPECT_EQ(Events(id).back().body["reason"], reason);
    EXPECT_EQ(database_->GetAttempt(id, 1)->state, "PREEMPTED");
    clock_.Advance(absl::Seconds(10));
    controller_->Tick();
    EXPECT_EQ(Trainer(id).order.attempt, 2);
    EXPECT_EQ(Trainer(id).order.resume_step, 2);
    EXPECT_EQ(controller_->Get(id)->retries, 0);
    ASSERT_TRUE(controller_->Cancel(id).ok());
    machine_.Exit(Trainer(id), 0);
    controller_->Tick();
  }
}

TEST_F(ClusterEndsTest, DirectoryOfALostNodeIsTakenAwayBeforeTheNextAttempt) {
  const std::string id = Running();
  const std::string directory = Trainer(id).directory;
  machine_.End(Trainer(id), {.cause = Cause::kNodeLost});
  controller_->Tick();
  EXPECT_TRUE(std::filesystem::is_directory(directory + ".lost"));
  EXPECT_TRUE(std::filesystem::is_regular_file(directory));
  EXPECT_EQ(controller_->Checkpoints(id)->at(0).step, 2);
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  FakeMachine::Trainer& second = Trainer(id);
  EXPECT_EQ(second.order.resume_checkpoint_directory, directory + ".lost/checkpoints/step-00000002");
  Ready(second, 2);
  Finish(second);
  machine_.Exit(second, 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(controller_->Get(id)->retries, 0);
}

TEST_F(ClusterEndsTest, ServerKilledWhileItGivesUpALostNodeRecordsIt) {
  for (const bool placed : {false, true}) {
    SCOPED_TRACE(placed);
    const std::string id = Running();
    const std::string directory = Trainer(id).directory;
    Kill();
    std::filesystem::rename(directory, directory + ".lost");
    if (placed) WriteFile(directory, "given up");
    Open();
    controller_->Tick();
    EXPECT_EQ(State(id), kQueued);
    EXPECT_EQ(Events(id).back().body["reason"], "NODE_LOST");
    EXPECT_EQ(controller_->Get(id)->retries, 0);
    EXPECT_TRUE(std::filesystem::is_regular_file(directory));
    ASSERT_TRUE(controller_->Cancel(id).ok());
  }
}

TEST_F(ClusterEndsTest, OutcomeOfALostNodeCounts) {
  const std::string id = Running();
  Finish(Trainer(id));
  machine_.End(Trainer(id), {.cause = Cause::kNodeLost});
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
}

TEST_F(ClusterEndsTest, TrainerThatItsClusterEndedForMemoryCountsARetry) {
  const std::string id = Running();
  machine_.End(Trainer(id), {.cause = Cause::kOutOfMemory});
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "OUT_OF_MEMORY");
  EXPECT_EQ(controller_->Get(id)->retries, 1);
}

TEST_F(ClusterEndsTest, CancelledJobIsCancelledHoweverItsTrainerEnds) {
  for (const Cause cause : {Cause::kSignaled, Cause::kUnknown, Cause::kOutOfMemory, Cause::kEvicted, Cause::kPreempted,
                            Cause::kNodeLost, Cause::kDeleted}) {
    SCOPED_TRACE(static_cast<int>(cause));
    const std::string id = Running();
    ASSERT_TRUE(controller_->Cancel(id).ok());
    machine_.End(Trainer(id), {.cause = cause});
    controller_->Tick();
    EXPECT_EQ(State(id), kCancelled);
  }
}

TEST_F(ClusterEndsTest, TrainerThatWaitsForResourcesSaysWhyOnceAndIsNotHung) {
  machine_.waiting_for = "0/3 nodes are available";
  const std::string id = Submit();
  for (int i = 0; i < 3; ++i) {
    controller_->Tick();
    clock_.Advance(absl::Hours(1));
  }
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_THAT(Warnings(id), ElementsAre("0/3 nodes are available"));
  EXPECT_EQ(database_->GetAttempt(id, 1)->handle, "");
  machine_.waiting_for = "the queue has no quota left";
  controller_->Tick();
  controller_->Tick();
  EXPECT_THAT(Warnings(id), ElementsAre("0/3 nodes are available", "the queue has no quota left"));
  EXPECT_THAT(Trainer(id).signals, IsEmpty());
  machine_.waiting_for.clear();
  Ready(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(State(id), kRunning);
  EXPECT_EQ(database_->GetAttempt(id, 1)->handle, std::to_string(Trainer(id).pid)) << "recorded once it is known";
}

TEST_F(ClusterEndsTest, RunnerForgetsATrainerOnceItsEndIsRecorded) {
  RefusingDatabase& database = OpenOn<RefusingDatabase>();
  const std::string id = Running();
  FakeMachine::Trainer& trainer = Trainer(id);
  machine_.Kill(trainer);
  database.refuses = true;
  controller_->Tick();
  EXPECT_EQ(State(id), kRunning);
  EXPECT_FALSE(trainer.forgotten);
  database.refuses = false;
  clock_.Advance(absl::Seconds(1));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_TRUE(trainer.forgotten);
}

}  // namespace
}  // namespace nibble::jobs
