// Operations of users on a job: cancel, pause, resume, request a checkpoint, delete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/base/error.h"
#include "server/jobs/cancel_error.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using enum JobState;

class JobMovesTest : public ControllerFixture {};

TEST_F(JobMovesTest, CancelWhileQueuedNeverStarts) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelled);
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelled);
  controller_->Tick();
  EXPECT_EQ(machine_.All().size(), 0u);
  EXPECT_TRUE(controller_->Events(id, 0, 10)->ended);
  EXPECT_TRUE(state_->models->Reserve("out", "x").ok());
  EXPECT_THAT(observer_.ended, ElementsAre("CANCELLED"));
  const auto job = controller_->Get(id);
  ASSERT_TRUE(job->error.has_value());
  EXPECT_EQ(job->error->code, "CANCELLED");
  EXPECT_EQ(job->error->reason, "USER");
  EXPECT_EQ(base::Reason(controller_->Resume(id).status()), "ILLEGAL_STATE");
  EXPECT_EQ(base::Reason(controller_->Cancel("job-x").status()), "JOB");
}

TEST_F(JobMovesTest, CancelTellsTheTrainerThenKillsIt) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelling);
  controller_->Tick();
  EXPECT_THAT(Trainer(id).signals, ElementsAre(Runner::Signal::kTerminate));
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), Trainer(id).directory), Control::kCancel);
  clock_.Advance(absl::Seconds(4));
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelling);
  clock_.Advance(absl::Seconds(1));
  controller_->Tick();
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_EQ(machine_.num_alive(), 0);
  EXPECT_THAT(observer_.attempts, ElementsAre("CANCELLED"));
  EXPECT_THAT(observer_.ended, ElementsAre("CANCELLED"));
  const auto job = controller_->Get(id);
  ASSERT_TRUE(job->error.has_value()) << "the error says why the job ended, not how its trainer ended";
  EXPECT_EQ(job->error->code, "CANCELLED");
  EXPECT_EQ(job->error->reason, "USER");
}

TEST_F(JobMovesTest, CancelThatKeepsACheckpointWaitsForItEvenAcrossARestart) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(controller_->Cancel(id, {}, /*keep_checkpoint=*/true)->state, kCancelling);
  KillAndReopen();  // Before the trainer was signalled.
  controller_->Tick();
  FakeMachine::Trainer& trainer = *machine_.All()[0];
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), trainer.directory), Control::kCancelKeeping);
  clock_.Advance(absl::Seconds(30));
  controller_->Tick();
  EXPECT_THAT(trainer.signals, ElementsAre(Runner::Signal::kTerminate)) << "the trainer has time for a checkpoint";
  Checkpoint(trainer, 3);
  Stop(trainer, Outcome::Kind::kCancelled);
  machine_.Exit(trainer, kExitOk);
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_EQ(controller_->Checkpoints(id)->size(), 1u);
}

TEST_F(JobMovesTest, CancelledJobSaysWhatPauseAndPublishKeep) {
  const auto message = [this](const std::string& id) {
    const auto job = controller_->Get(id);
    EXPECT_EQ(job->state, kCancelled);
    EXPECT_EQ(Events(id).back().body["message"], job->error->message);
    return job->error->message;
  };
  const auto cancel_at_step_3 = [&](bool with_checkpoint) {
    const std::string id = Submit();
    controller_->Tick();
    Ready(Trainer(id));
    if (with_checkpoint) Checkpoint(Trainer(id), 2);
    Step(Trainer(id), 3);
    controller_->Tick();
    EXPECT_EQ(controller_->Cancel(id)->state, kCancelling);
    Stop(Trainer(id), Outcome::Kind::kCancelled);
    machine_.Exit(Trainer(id), kExitOk);
    controller_->Tick();
    return id;
  };
  const std::string id = cancel_at_step_3(true);
  EXPECT_EQ(message(id),
            "cancelled by the user after step 3; a paused job keeps every whole step and can be resumed; "
            "`nibble jobs publish " +
                id + "/2 --name NAME` makes a model of the last checkpoint, " + id + "/2, until the job is deleted");
  EXPECT_TRUE(controller_->FindCheckpoint(id + "/2").ok());
  EXPECT_EQ(message(cancel_at_step_3(false)),
            "cancelled by the user after step 3; a paused job keeps every whole step and can be resumed; the job has "
            "no checkpoint that could be published");
  const std::string queued = Submit();
  ASSERT_TRUE(controller_->Cancel(queued).ok());
  EXPECT_EQ(message(queued), "cancelled by the user");
  EXPECT_EQ(CancelledByUser("job-1", kPaused, {{"step", 3}, {"checkpoint_step", 3}}).message,
            "cancelled by the user after step 3; `nibble jobs publish job-1/3 --name NAME` makes a model of the last "
            "checkpoint, job-1/3, until the job is deleted");
}

TEST_F(JobMovesTest, CheckpointRequestReachesTheNextTrainerIfTheFirstDies) {
  const std::string id = Submit();
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE");  // QUEUED
  controller_->Tick();
  EXPECT_EQ(controller_->Checkpoint(id)->state, kPreparing);
  EXPECT_TRUE(controller_->Checkpoint(id).ok()) << "a second request is accepted";
  EXPECT_TRUE(CheckpointRequest(base::RealFileSystem(), Trainer(id).directory).has_value());
  EXPECT_TRUE(Trainer(id).signals.empty());
  machine_.Kill(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  ASSERT_EQ(Trainer(id).order.attempt, 2);
  EXPECT_TRUE(CheckpointRequest(base::RealFileSystem(), Trainer(id).directory).has_value());
  ASSERT_TRUE(ClearCheckpointRequest(base::RealFileSystem(), Trainer(id).directory).ok());
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE");  // CANCELLING
}

TEST_F(JobMovesTest, EtagGuardsEveryMove) {
  const std::string id = Submit(Spec("out"));
  const std::string before = Etag(*controller_->Get(id));
  controller_->Tick();
  EXPECT_EQ(base::Reason(controller_->Cancel(id, before).status()), "ETAG_MISMATCH");
  EXPECT_EQ(controller_->Cancel(id, before).status().code(), absl::StatusCode::kAborted);
  Ready(Trainer(id));
  controller_->Tick();
  const std::string running = Etag(*controller_->Get(id));
  Step(Trainer(id), 1);
  controller_->Tick();
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id, before).status()), "ETAG_MISMATCH");
  EXPECT_TRUE(controller_->Checkpoint(id, running).ok()) << "progress does not change the etag";
  EXPECT_EQ(base::Reason(controller_->Pause(id, before).status()), "ETAG_MISMATCH");
  const auto pausing = controller_->Pause(id, running);
  ASSERT_TRUE(pausing.ok());
  EXPECT_EQ(base::Reason(controller_->Pause(id, running).status()), "ETAG_MISMATCH") << "the job is PAUSING now";
  machine_.Exit(Trainer(id), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(base::Reason(controller_->Resume(id, running).status()), "ETAG_MISMATCH");
  EXPECT_TRUE(controller_->Resume(id, Etag(*controller_->Get(id))).ok());
  EXPECT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(base::Reason(controller_->Delete(id, running)), "ETAG_MISMATCH");
  EXPECT_TRUE(controller_->Delete(id, Etag(*controller_->Get(id))).ok());
}

// A client that saw the job run did not mean to delete the record of its failure.
TEST_F(JobMovesTest, DeleteFailsIfTheJobEndsAfterItsEtagWasRead) {
  auto& database = OpenOn<MeddledDatabase>();
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  const std::string running = Etag(*controller_->Get(id));
  Fail(Trainer(id), "NAN_LOSS", kExitBadInput);
  machine_.Exit(Trainer(id), kExitBadInput);
  database.meddle = [this] { controller_->Tick(); };
  EXPECT_EQ(base::Reason(controller_->Delete(id, running)), "ETAG_MISMATCH");
  EXPECT_FALSE(database.meddle) << "the job ended during the delete";
  EXPECT_EQ(State(id), kFailed);
  EXPECT_TRUE(base::RealFileSystem().Exists(state_->paths.job(id)));
  EXPECT_TRUE(controller_->Delete(id, Etag(*controller_->Get(id))).ok());
}

TEST_F(JobMovesTest, PauseWritesACheckpointAndResumeContinuesFromIt) {
  const std::string id = Submit();
  controller_->Tick();
  EXPECT_EQ(base::Reason(controller_->Pause(id).status()), "ILLEGAL_STATE");  // PREPARING
  Ready(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(controller_->Pause(id)->state, kPausing);
  controller_->Tick();
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), Trainer(id).directory), Control::kPause);
  Checkpoint(Trainer(id), 3);
  Stop(Trainer(id), Outcome::Kind::kPaused);
  machine_.Exit(Trainer(id), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(State(id), kPaused);
  controller_->Tick();
  EXPECT_EQ(machine_.num_alive(), 0);
  KillAndReopen();
  EXPECT_EQ(State(id), kPaused);
  EXPECT_EQ(controller_->Resume(id)->state, kQueued);
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.resume_step, 3);
}

TEST_F(JobMovesTest, CancelRacesFinishAndOneOfThemWins) {  // R25
  int cancelled = 0;
  for (int round = 0; round < NIBBLE_RACE_ROUNDS; ++round) {
    const std::string output = "out-" + std::to_string(round);
    const std::string id = Submit(Spec(output));
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    Finish(Trainer(id));
    machine_.Exit(Trainer(id), 0);
    absl::Status answer;
    std::thread canceller([&] { answer = controller_->Cancel(id).status(); });
    controller_->Tick();
    canceller.join();
    controller_->Tick();
    const JobState state = State(id);
    EXPECT_TRUE(state == kSucceeded || state == kCancelled) << Name(state);
    EXPECT_EQ(state_->models->Get(output).ok(), state == kSucceeded);
    EXPECT_EQ(answer.ok(), state == kCancelled) << answer;
    int finals = 0;
    for (const Event& event : Events(id)) {
      finals += event.type == "state" && IsFinal(*ParseJobState(event.body["state"].get<std::string>()));
    }
    EXPECT_EQ(finals, 1);
    cancelled += state == kCancelled;
  }
  RecordProperty("cancelled", cancelled);
  // Only many rounds are sure to see both outcomes of the race.
  if (NIBBLE_RACE_ROUNDS >= 1000) {
    EXPECT_GT(cancelled, 0);
    EXPECT_LT(cancelled, NIBBLE_RACE_ROUNDS);
  }
}

TEST_F(JobMovesTest, DeleteRemovesAFinalJobAndItsFilesButNotItsModel) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(base::Reason(controller_->Delete(id)), "ILLEGAL_STATE");
  controller_->Tick();
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  ASSERT_EQ(State(id), kSucceeded) << "a trainer that never reported RUNNING can succeed";
  ASSERT_TRUE(controller_->Delete(id).ok());
  EXPECT_FALSE(base::RealFileSystem().Exists(state_->paths.job(id)));
  EXPECT_TRUE(state_->models->Get("out").ok());
}

}  // namespace
}  // namespace nibble::jobs
