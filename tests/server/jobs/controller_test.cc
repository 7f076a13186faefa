#include "server/jobs/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/base/error.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum JobState;

class ControllerTest : public ControllerFixture {};

TEST_F(ControllerTest, GoodRunEndsAsAModel) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(State(id), kQueued);
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  FakeMachine::Trainer& trainer = Trainer(id);
  EXPECT_EQ(trainer.order.spec.data.format, "text");
  EXPECT_EQ(trainer.order.base_model_directory, state_->layout.model("base"));
  EXPECT_EQ(trainer.order.train_data_path, state_->datasets->Get("train")->data_path);
  EXPECT_EQ(trainer.order.resume_checkpoint_directory, "");
  Ready(trainer);
  controller_->Tick();
  EXPECT_EQ(State(id), kRunning);
  for (int step = 1; step <= 4; ++step) Step(trainer, step);
  controller_->Tick();
  EXPECT_EQ(controller_->Get(id)->progress["step"], 4);
  Finish(trainer);
  machine_.Exit(trainer, 0);
  controller_->Tick();

  const auto job = controller_->Get(id);
  EXPECT_EQ(job->state, kSucceeded);
  EXPECT_EQ(job->attempt, 1);
  EXPECT_EQ(job->progress["step"], 4);
  EXPECT_EQ(job->progress["max_steps"], 4);
  EXPECT_EQ(job->progress["tokens"], 256);
  EXPECT_GT(job->progress["tokens_per_s"].get<double>(), 0);
  EXPECT_EQ(job->progress["eval_loss_int8"], 1.5);
  EXPECT_EQ(Story(id), "state:QUEUED state:PREPARING state:RUNNING step step step step model state:SUCCEEDED");
  EXPECT_EQ(Events(id)[7].body["model"], "out");
  EXPECT_EQ(Events(id)[7].body["digest"], "abc");
  EXPECT_TRUE(controller_->Events(id, 0, 100)->ended);
  EXPECT_FALSE(controller_->Events(id, 0, 3)->ended);
  EXPECT_TRUE(state_->models->Verify("out").ok());
  EXPECT_THAT(observer_.models, ElementsAre("out"));
  EXPECT_THAT(observer_.attempts, ElementsAre("SUCCEEDED"));
  EXPECT_THAT(observer_.ended, ElementsAre("SUCCEEDED"));
  EXPECT_THAT(observer_.started, ElementsAre(1));
  EXPECT_EQ(observer_.created, 1);
  EXPECT_THAT(observer_.events, ElementsAre("state", "step", "step", "step", "step"));
  EXPECT_TRUE(state_->models->Delete("base").ok()) << "nobody uses it any more";
}

TEST_F(ControllerTest, BadSubmissionsLeaveNothing) {
  const auto reason = [&](const JobSpec& spec) { return base::Reason(controller_->Submit(spec, "r").status()); };
  JobSpec spec = Spec("out");
  spec.base_model = "nobody";
  EXPECT_EQ(reason(spec), "MODEL");
  spec = Spec("out");
  spec.eval_dataset = "nothing";
  EXPECT_EQ(reason(spec), "DATASET");
  spec = Spec("out");
  spec.qlora.r = 0;
  EXPECT_EQ(reason(spec), "FIELD_VIOLATION");
  spec = Spec("base");
  EXPECT_EQ(reason(spec), "NAME_TAKEN");
  spec = Spec("out");
  spec.data.overlong = "split";
  spec.data.format = "chat";
  EXPECT_EQ(reason(spec), "FIELD_VIOLATION");
  EXPECT_TRUE(controller_->List({}, 0, 10)->empty());
  EXPECT_TRUE(controller_->Submit(Spec("out"), "r").ok()) << "neither request_id nor name were used up";
  EXPECT_EQ(reason(Spec("out")), "") << "the same request again";
  EXPECT_EQ(base::Reason(controller_->Submit(Spec("out"), "r2").status()), "NAME_TAKEN");
  EXPECT_EQ(reason(Spec("other")), "IDEMPOTENCY_CONFLICT");
}

TEST_F(ControllerTest, SpecCheckOfTheServerIsAskedWithTheResolvedSpec) {
  Kill();
  options_.check_spec = [](const JobSpec& spec) {
    EXPECT_EQ(spec.device, "cpu");
    return base::FieldError("data.max_seq_len", "longer than the model");
  };
  Open();
  EXPECT_EQ(base::Reason(controller_->Submit(Spec(), "").status()), "FIELD_VIOLATION");
}

TEST_F(ControllerTest, FiftyParallelSubmissionsOfOneRequestMakeOneJob) {  // R24
  std::vector<std::thread> threads;
  std::vector<std::string> ids(50);
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&, i] {
      const auto job = controller_->Submit(Spec("out"), "request-1");
      if (job.ok()) ids[static_cast<std::size_t>(i)] = job->id;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(controller_->List({}, 0, 100)->size(), 1u);
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  KillAndReopen();
  EXPECT_EQ(controller_->Submit(Spec("out"), "request-1")->id, ids[0]);
  EXPECT_EQ(controller_->List({}, 0, 100)->size(), 1u);
}

TEST_F(ControllerTest, FullQueueIsSaid) {
  Kill();
  options_.max_queued = 2;
  Open();
  Submit();
  Submit();
  EXPECT_EQ(base::Reason(controller_->Submit(Spec(), "").status()), "QUEUE_FULL");
}

TEST_F(ControllerTest, OwnersHaveAQuotaAndRequestIdsOfTheirOwn) {
  Kill();
  options_.max_open_per_owner = 2;
  Open();
  const auto submit = [&](const std::string& owner, const std::string& request) {
    return controller_->Submit(Spec(), request, {.owner = owner, .tenant = "team"});
  };
  const std::string a = submit("ann", "r1")->id;
  EXPECT_EQ(submit("ann", "r1")->id, a);
  const auto bob = submit("bob", "r1");
  ASSERT_TRUE(bob.ok()) << bob.status();
  EXPECT_NE(bob->id, a) << "another's request id";
  EXPECT_EQ(bob->owner, "bob");
  EXPECT_EQ(bob->tenant, "team");
  ASSERT_TRUE(submit("ann", "r2").ok());
  EXPECT_EQ(base::Reason(submit("ann", "r3").status()), "TENANT_QUOTA");
  EXPECT_TRUE(submit("ann", "r2").ok()) << "a repetition is no new job";
  ASSERT_TRUE(controller_->Cancel(a).ok());
  EXPECT_TRUE(submit("ann", "r3").ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit("", "").ok()) << "nobody's quota";
}

TEST_F(ControllerTest, OneRunsTheOthersWaitInOrder) {
  const std::string a = Submit(), b = Submit();
  JobSpec urgent = Spec();
  urgent.run.priority = 1;
  const std::string c = Submit(urgent);
  EXPECT_EQ(controller_->Get(c)->progress["queue_position"], 0);
  EXPECT_EQ(controller_->Get(a)->progress["queue_position"], 1);
  EXPECT_EQ(controller_->Get(b)->progress["queue_position"], 2);
  controller_->Tick();
  EXPECT_EQ(State(c), kPreparing);
  controller_->Tick();
  EXPECT_EQ(machine_.num_alive(), 1);
  machine_.Exit(Trainer(c), 42);
  controller_->Tick();
  EXPECT_EQ(State(c), kFailed);
  EXPECT_EQ(State(a), kPreparing);
  EXPECT_EQ(State(b), kQueued);
}

TEST_F(ControllerTest, BadInputIsNeverRetried) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Fail(Trainer(id), "NO_TRAINABLE_TOKENS", kExitBadInput);
  machine_.Exit(Trainer(id), kExitBadInput);
  controller_->Tick();
  const auto job = controller_->Get(id);
  EXPECT_EQ(job->state, kFailed);
  EXPECT_EQ(job->error->reason, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(job->error->message, "why");
  EXPECT_TRUE(state_->models->Reserve("out", "another").ok()) << "the name is free again";
}

TEST_F(ControllerTest, KilledTrainerIsRetriedFromItsLastCheckpointAfterABackoff) {  // R2
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  Step(Trainer(id), 1);
  Step(Trainer(id), 2);
  Checkpoint(Trainer(id), 2);
  Step(Trainer(id), 3);
  const std::string checkpoint = Trainer(id).directory + "/checkpoints/step-00000002";
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 1);
  clock_.Advance(absl::Milliseconds(9999));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  clock_.Advance(absl::Milliseconds(1));
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  FakeMachine::Trainer& second = Trainer(id);
  EXPECT_EQ(second.order.attempt, 2);
  EXPECT_EQ(second.order.resume_step, 2);
  EXPECT_EQ(second.order.resume_checkpoint_directory, checkpoint);
  Ready(second, 2);
  Step(second, 3);
  Step(second, 4);
  Finish(second);
  machine_.Exit(second, 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(Story(id),
            "state:QUEUED state:PREPARING state:RUNNING step step checkpoint step state:QUEUED state:PREPARING "
            "state:RUNNING step step model state:SUCCEEDED");
  const Event resumed = Events(id)[9];
  EXPECT_EQ(resumed.attempt, 2);
  EXPECT_EQ(resumed.body["resumed_step"], 2);
  EXPECT_EQ(Events(id)[7].body["reason"], "TRAINER_SIGNAL");
}

TEST_F(ControllerTest, DamagedCheckpointIsPassedOverAtResume) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  Checkpoint(Trainer(id), 1);
  Checkpoint(Trainer(id), 2);
  WriteFile(Trainer(id).directory + "/checkpoints/step-00000002/adapter.bin", "step X");
  machine_.Kill(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.resume_step, 1);
  EXPECT_EQ(observer_.damaged, 1);
  EXPECT_EQ(Events(id).back().body["reason"], "CHECKPOINT_CORRUPT");
}

TEST_F(ControllerTest, RetriesEndAndTheJobFailsWithTheLastReason) {
  const std::string id = Submit();
  for (int attempt = 1; attempt <= 6; ++attempt) {
    clock_.Advance(absl::Seconds(360));
    controller_->Tick();
    ASSERT_EQ(State(id), kPreparing) << attempt;
    machine_.Exit(Trainer(id), 1);
    controller_->Tick();
  }
  const auto job = controller_->Get(id);
  EXPECT_EQ(job->state, kFailed);
  EXPECT_EQ(job->attempt, 6);
  EXPECT_EQ(job->error->reason, "TRAINER_EXIT");
  EXPECT_THAT(observer_.attempts, ElementsAre("FAILED", "FAILED", "FAILED", "FAILED", "FAILED", "FAILED"));
  EXPECT_THAT(observer_.ended, ElementsAre("FAILED")) << "a job ends once, however many attempts it took";
  EXPECT_THAT(observer_.started, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(ControllerTest, CheckpointedStopDoesNotCount) {  // R4
  const std::string id = Submit();
  for (int attempt = 1; attempt <= 8; ++attempt) {
    clock_.Advance(absl::Seconds(10));
    controller_->Tick();
    ASSERT_EQ(State(id), kPreparing) << attempt;
    machine_.Exit(Trainer(id), kExitTempFail);
    controller_->Tick();
    ASSERT_EQ(State(id), kQueued) << attempt;
  }
  EXPECT_EQ(controller_->Get(id)->retries, 0);
}

TEST_F(ControllerTest, TrainerThatCannotBeStartedIsRetried) {
  const std::string id = Submit();
  machine_.fail_start = absl::FailedPreconditionError("no such program");
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 1);
  machine_.fail_start = absl::OkStatus();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
}

TEST_F(ControllerTest, OutputThatDoesNotFitItsManifestIsNoSuccess) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  Finish(Trainer(id));
  WriteFile(Trainer(id).order.output_directory + "/model.safetensors", "weightz");
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "OUTPUT_INVALID");
  EXPECT_FALSE(state_->models->Get("out").ok());
}

TEST_F(ControllerTest, SilentTrainerIsEndedAndRetried) {
  const std::string id = Submit();
  controller_->Tick();
  clock_.Advance(absl::Minutes(29));
  Ready(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Minutes(29));
  controller_->Tick();
  EXPECT_EQ(State(id), kRunning);
  clock_.Advance(absl::Minutes(1));
  controller_->Tick();
  EXPECT_THAT(Trainer(id).signals, ElementsAre(Runner::Signal::kTerminate));
  EXPECT_EQ(State(id), kRunning);
  clock_.Advance(absl::Seconds(20));
  controller_->Tick();
  EXPECT_THAT(Trainer(id).signals, ElementsAre(Runner::Signal::kTerminate, Runner::Signal::kKill));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "NO_PROGRESS");
  EXPECT_EQ(controller_->Get(id)->retries, 1);
  EXPECT_EQ(database_->GetAttempt(id, 1)->state, "FAILED");
}

TEST_F(ControllerTest, SilentTrainerThatChecksPointsWhenToldCountsAllTheSame) {  // R16
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Minutes(30));
  controller_->Tick();
  Checkpoint(Trainer(id), 3);
  Stop(Trainer(id), Outcome::Kind::kPaused);
  machine_.Exit(Trainer(id), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 1);
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.resume_step, 3);
}

TEST_F(ControllerTest, CancelWhileQueuedNeverStarts) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelled);
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelled);
  controller_->Tick();
  EXPECT_EQ(machine_.All().size(), 0u);
  EXPECT_TRUE(controller_->Events(id, 0, 10)->ended);
  EXPECT_TRUE(state_->models->Reserve("out", "x").ok());
  EXPECT_THAT(observer_.ended, ElementsAre("CANCELLED"));
  EXPECT_EQ(base::Reason(controller_->Resume(id).status()), "ILLEGAL_STATE");
  EXPECT_EQ(base::Reason(controller_->Cancel("job-x").status()), "JOB");
}

TEST_F(ControllerTest, CancelTellsTheTrainerThenKillsIt) {
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
}

TEST_F(ControllerTest, CancelThatKeepsACheckpointWaitsForItEvenAcrossARestart) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(controller_->Cancel(id, {}, /*keep_checkpoint=*/true)->state, kCancelling);
  KillAndReopen();  // Before the trainer was told.
  controller_->Tick();
  FakeMachine::Trainer& trainer = *machine_.All()[0];
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), trainer.directory), Control::kCancelKeeping);
  clock_.Advance(absl::Seconds(30));
  controller_->Tick();
  EXPECT_THAT(trainer.signals, ElementsAre(Runner::Signal::kTerminate)) << "a checkpoint takes its time";
  Checkpoint(trainer, 3);
  Stop(trainer, Outcome::Kind::kCancelled);
  machine_.Exit(trainer, kExitOk);
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_EQ(controller_->Checkpoints(id)->size(), 1u);
}

TEST_F(ControllerTest, CheckpointIsAskedOfTheTrainerAndOfTheNextOneIfItDies) {
  const std::string id = Submit();
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE");  // QUEUED
  controller_->Tick();
  EXPECT_EQ(controller_->Checkpoint(id)->state, kPreparing);
  EXPECT_TRUE(controller_->Checkpoint(id).ok()) << "twice is as good as once";
  EXPECT_TRUE(CheckpointRequested(base::RealFileSystem(), Trainer(id).directory));
  EXPECT_TRUE(Trainer(id).signals.empty());
  machine_.Kill(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  ASSERT_EQ(Trainer(id).order.attempt, 2);
  EXPECT_TRUE(CheckpointRequested(base::RealFileSystem(), Trainer(id).directory));
  ASSERT_TRUE(ClearCheckpointRequest(base::RealFileSystem(), Trainer(id).directory).ok());
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE");  // CANCELLING
}

TEST_F(ControllerTest, EtagGuardsEveryMove) {
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
  EXPECT_TRUE(controller_->Checkpoint(id, running).ok()) << "progress does not change it";
  EXPECT_EQ(base::Reason(controller_->Pause(id, before).status()), "ETAG_MISMATCH");
  const auto pausing = controller_->Pause(id, running);
  ASSERT_TRUE(pausing.ok());
  EXPECT_EQ(base::Reason(controller_->Pause(id, running).status()), "ETAG_MISMATCH") << "it is PAUSING now";
  machine_.Exit(Trainer(id), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(base::Reason(controller_->Resume(id, running).status()), "ETAG_MISMATCH");
  EXPECT_TRUE(controller_->Resume(id, Etag(*controller_->Get(id))).ok());
  EXPECT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(base::Reason(controller_->Delete(id, running)), "ETAG_MISMATCH");
  EXPECT_TRUE(controller_->Delete(id, Etag(*controller_->Get(id))).ok());
}

TEST_F(ControllerTest, RequestIdIsKeptForADayEvenWhenItsJobIsDeleted) {
  const auto submit = [&](const std::string& output) { return controller_->Submit(Spec(output), "request"); };
  const std::string id = submit("out")->id;
  clock_.Advance(absl::Hours(24) - absl::Seconds(1));
  EXPECT_EQ(submit("out")->id, id);
  EXPECT_EQ(base::Reason(submit("other").status()), "IDEMPOTENCY_CONFLICT");
  ASSERT_TRUE(controller_->Cancel(id).ok());
  ASSERT_TRUE(controller_->Delete(id).ok());
  EXPECT_EQ(base::Reason(submit("out").status()), "JOB") << "no second job of one request";
  clock_.Advance(absl::Seconds(2));
  const auto again = submit("other");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(again->id, id);
}

TEST_F(ControllerTest, JobsAreAdmittedByTheirPlannedMemory) {
  Kill();
  options_.queue = {.max_running = 4, .memory_bytes = 1000};
  options_.plan_memory = [](const JobSpec& spec) -> absl::StatusOr<std::int64_t> { return spec.qlora.r * 100; };
  Open();
  const auto submit = [&](std::int64_t r) {
    JobSpec spec = Spec();
    spec.qlora.r = r;
    return controller_->Submit(spec, "");
  };
  const auto too_large = submit(11).status();
  EXPECT_EQ(base::Reason(too_large), "OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(base::ReasonMetadata(too_large).at("need"), "1100");
  const std::string a = submit(6)->id, b = submit(5)->id, c = submit(1)->id;
  controller_->Tick();
  EXPECT_EQ(State(a), kPreparing);
  EXPECT_EQ(State(b), kQueued);
  EXPECT_EQ(State(c), kQueued) << "it must not pass b, for which room is being made";
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(State(b), kQueued) << "the adopted trainer's memory still counts";
  Fail(Trainer(a), "NAN_LOSS", kExitBadInput);
  machine_.Exit(Trainer(a), kExitBadInput);
  controller_->Tick();
  EXPECT_EQ(State(b), kPreparing);
  EXPECT_EQ(State(c), kPreparing);
}

TEST_F(ControllerTest, LowDiskIsRefusedBeforeItIsFullAndReadsGoOn) {  // R9
  const std::string id = Submit();
  Kill();
  min_free_bytes_ = std::uint64_t{1} << 60;
  Open();
  const auto refused = controller_->Submit(Spec(), "").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_EQ(State(id), kQueued);
  EXPECT_TRUE(controller_->Cancel(id).ok());
  EXPECT_TRUE(controller_->Delete(id).ok());
}

TEST_F(ControllerTest, PauseCheckpointsAndResumeGoesOnFromThere) {
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

TEST_F(ControllerTest, CancelRacesFinishAndOneOfThemWins) {  // R25
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
}

TEST_F(ControllerTest, WatcherIsWokenAndReadsOn) {
  const std::string id = Submit();
  int calls = 0;
  auto subscription = controller_->Subscribe(id, [&] { ++calls; });
  std::thread trainer_thread([&] {
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
  });
  std::int64_t after = 1;
  while (after < 3) {
    const auto page = controller_->WaitForEvents(id, after, 1, absl::Seconds(10));
    ASSERT_TRUE(page.ok());
    ASSERT_EQ(page->events.size(), 1u);
    EXPECT_EQ(page->events[0].sequence, after + 1);
    after = page->events[0].sequence;
  }
  trainer_thread.join();
  EXPECT_GE(calls, 2);
  subscription.reset();
  const int before = calls;
  controller_->Cancel(id).IgnoreError();
  EXPECT_EQ(calls, before);
  const auto none = controller_->WaitForEvents(id, 100, 1, absl::Milliseconds(1));
  EXPECT_TRUE(none.ok() && none->events.empty());
}

TEST_F(ControllerTest, DeleteRemovesAFinalJobAndItsFilesButNotItsModel) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(base::Reason(controller_->Delete(id)), "ILLEGAL_STATE");
  controller_->Tick();
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  ASSERT_EQ(State(id), kSucceeded) << "a trainer that never said that it began has succeeded all the same";
  ASSERT_TRUE(controller_->Delete(id).ok());
  EXPECT_FALSE(base::RealFileSystem().Exists(state_->layout.job(id)));
  EXPECT_TRUE(state_->models->Get("out").ok());
}

}  // namespace
}  // namespace nibble::jobs
