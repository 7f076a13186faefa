#include "server/jobs/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "server/base/error.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum JobState;

class ControllerTest : public ControllerFixture {};

TEST_F(ControllerTest, GoodRunPublishesAModel) {
  const std::string id = Submit(Spec("out"));
  EXPECT_EQ(State(id), kQueued);
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  FakeMachine::Trainer& trainer = Trainer(id);
  EXPECT_EQ(trainer.order.spec.data.format, "text");
  EXPECT_EQ(trainer.order.base_model_directory, state_->paths.model("base"));
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
  EXPECT_EQ(Story(id),
            "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step step step step model state:SUCCEEDED");
  EXPECT_EQ(Events(id)[8].body["model"], "out");
  EXPECT_EQ(Events(id)[8].body["digest"], "abc");
  EXPECT_TRUE(controller_->Events(id, 0, 100)->ended);
  EXPECT_FALSE(controller_->Events(id, 0, 3)->ended);
  EXPECT_TRUE(state_->models->Verify("out").ok());
  EXPECT_THAT(observer_.models, ElementsAre("out"));
  EXPECT_THAT(observer_.attempts, ElementsAre("SUCCEEDED"));
  EXPECT_THAT(observer_.ended, ElementsAre("SUCCEEDED"));
  EXPECT_THAT(observer_.started, ElementsAre(1));
  EXPECT_EQ(observer_.created, 1);
  EXPECT_THAT(observer_.events, ElementsAre("state", "step", "step", "step", "step"));
  EXPECT_TRUE(state_->models->Delete("base").ok()) << "no job uses it any more";
}

TEST_F(ControllerTest, DigestsAreFixedAtCreationAndSurviveARestart) {
  Kill();
  options_.code_digest = "c0de";
  Open();
  const std::map<std::string, std::string> files = {{"chat_template.jinja", "{{ t }}"}, {"tokenizer.json", "{}"}};
  auto pending = state_->models->Begin("spoken");
  ASSERT_TRUE(pending.ok()) << pending.status();
  WriteFile((*pending)->directory() + "/nibble.json", R"({"format":"f32","weights_digest":"abc"})");
  std::string listed;  // as sha256sum prints it
  for (const auto& [name, text] : files) {
    WriteFile((*pending)->directory() + "/" + name, text);
    listed += base::Sha256Hex(text) + "  " + name + "\n";
  }
  ASSERT_TRUE((*pending)->Commit().ok());
  pending->reset();  // must be destroyed before its store
  JobSpec spec = Spec();
  spec.base_model = "spoken";
  spec.eval_dataset = "eval";
  const auto submitted = controller_->Submit(spec, "");
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const JobDigests made = submitted->digests;
  EXPECT_EQ(made.config, Digest(submitted->spec));
  EXPECT_NE(made.config, Digest(spec)) << "the digest is of the resolved spec";
  EXPECT_EQ(made.data, state_->datasets->Get("train")->sha256);
  EXPECT_EQ(made.eval_data, state_->datasets->Get("eval")->sha256);
  EXPECT_EQ(made.tokenizer, base::Sha256Hex(listed));
  EXPECT_EQ(made.base_model, "abc");
  EXPECT_EQ(made.code, "c0de");
  const std::string plain = Submit();
  Kill();
  options_.code_digest = "another build";
  Open();
  EXPECT_EQ(ToJson(controller_->Get(submitted->id)->digests), ToJson(made));
  const auto without = controller_->Get(plain);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->digests.tokenizer, "") << "a model without text";
  EXPECT_EQ(without->digests.eval_data, "");
  EXPECT_EQ(without->digests.code, "c0de");
}

TEST_F(ControllerTest, BestCheckpointIsTheKeptOneWithTheLowestLoss) {
  const auto best = [this](const std::string& id) {
    const auto job = controller_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() && job->best_checkpoint.has_value() ? job->best_checkpoint->step : 0;
  };
  JobSpec spec = Spec();
  spec.run.keep_last = 3;
  const std::string id = Submit(spec);
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Ready(trainer);
  Checkpoint(trainer, 1, R"({"loss":2.0})");
  controller_->Tick();
  EXPECT_EQ(best(id), 0) << "no evaluation yet";
  Write(trainer, "eval", R"({"step":2,"eval_loss":2.5})");
  controller_->Tick();
  EXPECT_EQ(best(id), 0) << "no checkpoint since the evaluation";
  Checkpoint(trainer, 2, R"({"loss":2.0,"eval_loss":2.5})");
  Checkpoint(trainer, 3, R"({"loss":1.0,"eval_loss":2.25})");
  Checkpoint(trainer, 4, R"({"loss":1.0,"eval_loss":2.25})");
  controller_->Tick();
  EXPECT_EQ(best(id), 3) << "the first of equals";
  const auto listed = controller_->List({}, 10);
  ASSERT_TRUE(listed.ok() && listed->jobs.size() == 1) << listed.status();
  ASSERT_TRUE(listed->jobs.front().best_checkpoint.has_value());
  EXPECT_EQ(listed->jobs.front().best_checkpoint->metrics.at("eval_loss"), 2.25);
  ASSERT_TRUE(store::PruneCheckpoints(base::RealFileSystem(), trainer.directory, 1).ok());
  EXPECT_EQ(best(id), 4) << "a removed checkpoint is not the best";
  const auto kept = store::ListCheckpoints(base::RealFileSystem(), trainer.directory, 1);
  ASSERT_TRUE(kept.ok() && kept->size() == 1) << kept.status();
  for (const auto& file : std::filesystem::directory_iterator(kept->front().directory)) {
    if (file.path().filename() != store::kManifestFile) std::filesystem::resize_file(file, file.file_size() + 1);
  }
  EXPECT_EQ(best(id), 0) << "a damaged checkpoint is not the best";
}

// The trainer saves the last step before it evaluates it.
TEST_F(ControllerTest, FinalEvaluationBelongsToTheCheckpointOfTheLastStep) {
  JobSpec spec = Spec();
  spec.run.keep_last = 3;
  const std::string id = Submit(spec);
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Ready(trainer);
  Write(trainer, "eval", R"({"step":2,"eval_loss":2.5})");
  Checkpoint(trainer, 2, R"({"eval_loss":2.5})");
  Checkpoint(trainer, 4, R"({"eval_loss":2.5})");
  controller_->Tick();
  EXPECT_EQ(controller_->Get(id)->best_checkpoint->step, 2);
  Write(trainer, "eval", R"({"step":4,"eval_loss":2.0})");
  Write(trainer, "eval", R"({"step":4,"eval_loss":1.0,"what":"int8"})");
  controller_->Tick();
  const auto job = controller_->Get(id);
  ASSERT_TRUE(job.ok() && job->best_checkpoint.has_value()) << job.status();
  EXPECT_EQ(job->best_checkpoint->step, 4);
  EXPECT_EQ(job->best_checkpoint->metrics.at("eval_loss"), 2.0) << "the loss of the trained form, not of its int8 form";
  const auto listed = controller_->Checkpoints(id);
  ASSERT_TRUE(listed.ok() && listed->size() == 2) << listed.status();
  EXPECT_EQ(listed->front().metrics.at("eval_loss"), 2.5);
  EXPECT_EQ(listed->back().metrics.at("eval_loss"), 2.0);
}

TEST_F(ControllerTest, AgeOfTheLastRoundShowsAHungScheduler) {
  controller_->Tick();
  EXPECT_EQ(controller_->SinceRound(), absl::ZeroDuration());
  clock_.Advance(absl::Minutes(11));
  EXPECT_EQ(controller_->SinceRound(), absl::Minutes(11));
  controller_->Tick();
  EXPECT_EQ(controller_->SinceRound(), absl::ZeroDuration());
}

TEST_F(ControllerTest, OneJobRunsAndTheOthersWaitInOrder) {
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
  machine_.Exit(Trainer(c), kExitBadInput);
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
            "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step step checkpoint step state:QUEUED "
            "state:PREPARING "
            "state:RUNNING step step model state:SUCCEEDED");
  const Event resumed = Events(id)[10];
  EXPECT_EQ(resumed.attempt, 2);
  EXPECT_EQ(resumed.body["resumed_step"], 2);
  EXPECT_EQ(Events(id)[8].body["reason"], "TRAINER_SIGNAL");
}

TEST_F(ControllerTest, ResumeSkipsADamagedCheckpoint) {
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

TEST_F(ControllerTest, JobFailsWithTheLastReasonWhenRetriesRunOut) {
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

TEST_F(ControllerTest, OnlyTheEndOfAFailedAttemptIsAWarning) {
  const std::string id = Submit();
  const auto ended = [&](int code) {
    clock_.Advance(absl::Seconds(360));
    controller_->Tick();
    machine_.Exit(Trainer(id), code);
    ::testing::internal::CaptureStderr();
    controller_->Tick();
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string failed = ended(1);
  EXPECT_THAT(failed, HasSubstr(R"("level":"warning","message":"attempt ended")"));
  EXPECT_THAT(failed, HasSubstr(R"("attempt":1,"ended":"FAILED","state":"QUEUED","reason":"TRAINER_EXIT"})"));
  EXPECT_THAT(ended(kExitTempFail), HasSubstr(R"("level":"info","message":"attempt ended")"));
}

TEST_F(ControllerTest, CheckpointedStopIsNotCountedAsARetry) {  // R4
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

TEST_F(ControllerTest, OutputThatDoesNotMatchItsManifestIsRetried) {
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

TEST_F(ControllerTest, SilentTrainerIsKilledAndRetried) {
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

TEST_F(ControllerTest, TrainerThatShowsSignsOfLifeIsNotKilled) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  for (int i = 1; i <= 10; ++i) {  // an evaluation of 100 minutes
    clock_.Advance(absl::Minutes(10));
    ASSERT_TRUE(ShowAlive(base::RealFileSystem(), Trainer(id).directory, i).ok());
    controller_->Tick();
  }
  EXPECT_TRUE(Trainer(id).signals.empty());
  EXPECT_EQ(State(id), kRunning);
  // An old sign of life proves nothing.
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(absl::Minutes(10));
    controller_->Tick();
  }
  EXPECT_TRUE(Trainer(id).signals.empty());
  clock_.Advance(absl::Minutes(10));
  controller_->Tick();
  EXPECT_THAT(Trainer(id).signals, ElementsAre(Runner::Signal::kTerminate));
}

TEST_F(ControllerTest, TrainerShowsLifeAtLeastFourTimesInTheTimeout) {
  // Timeout, and seconds between two signs of life.
  const std::pair<absl::Duration, double> wanted[] = {{absl::ZeroDuration(), 10},  // no timeout
                                                      {absl::Minutes(30), 10},
                                                      {absl::Seconds(40), 10},
                                                      {absl::Seconds(12), 3}};
  for (const auto& [timeout, every_s] : wanted) {
    options_.no_progress_timeout = timeout;
    KillAndReopen();
    const std::string id = Submit();
    controller_->Tick();
    EXPECT_EQ(Trainer(id).order.show_alive_every_s, every_s) << timeout;
    ASSERT_TRUE(controller_->Cancel(id).ok());
    machine_.Kill(Trainer(id));
    controller_->Tick();
  }
}

TEST_F(ControllerTest, TrainerThatFreezesIsKilledWithinThirtySecondsOfTheTimeout) {  // R16
  const std::string id = Submit();
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Ready(trainer);
  for (int second = 1; second <= 910; ++second) {  // an evaluation: no line for half of the timeout
    clock_.Advance(absl::Seconds(1));
    controller_->Tick();
    if (second % 10 != 0) continue;
    ASSERT_TRUE(ShowAlive(base::RealFileSystem(), trainer.directory, second).ok());  // just after a round of the server
  }
  ASSERT_TRUE(trainer.signals.empty());
  const absl::Duration frozen = clock_.Monotonic();
  std::optional<absl::Duration> signalled;
  while (machine_.num_alive() == 1 && clock_.Monotonic() - frozen < absl::Hours(1)) {
    clock_.Advance(absl::Seconds(1));
    controller_->Tick();
    if (!trainer.signals.empty() && !signalled.has_value()) signalled = clock_.Monotonic() - frozen;
  }
  ASSERT_TRUE(signalled.has_value());
  EXPECT_GE(*signalled, options_.no_progress_timeout);
  EXPECT_THAT(trainer.signals, ElementsAre(Runner::Signal::kTerminate, Runner::Signal::kKill));
  EXPECT_LE(clock_.Monotonic() - frozen, options_.no_progress_timeout + absl::Seconds(30));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 1);
}

TEST_F(ControllerTest, KeepLastHoldsAcrossAttemptsWhileTheTrainerLives) {
  const auto kept = [this](const std::string& id) {
    std::vector<std::pair<int, int>> kept;  // attempt, step
    const auto checkpoints = controller_->Checkpoints(id);
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
    if (!checkpoints.ok()) return kept;
    for (const auto& one : *checkpoints) kept.emplace_back(one.attempt, one.step);
    return kept;
  };
  using std::pair;
  const std::string id = Submit();  // keep_last 2
  controller_->Tick();
  Ready(Trainer(id));
  Checkpoint(Trainer(id), 1);
  Checkpoint(Trainer(id), 2);
  machine_.Kill(Trainer(id));
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  EXPECT_THAT(kept(id), ElementsAre(pair(1, 1), pair(1, 2)));
  FakeMachine::Trainer& second = Trainer(id);
  Ready(second, 2);
  Checkpoint(second, 3);
  controller_->Tick();
  EXPECT_THAT(kept(id), ElementsAre(pair(1, 2), pair(2, 3)));
  Checkpoint(second, 4);
  controller_->Tick();
  EXPECT_THAT(kept(id), ElementsAre(pair(2, 3), pair(2, 4)));
  Checkpoint(second, 5);
  controller_->Tick();
  EXPECT_THAT(kept(id), ElementsAre(pair(2, 3), pair(2, 4), pair(2, 5)))
      << "the server leaves an attempt's own checkpoints to its trainer";
}

TEST_F(ControllerTest, SilentTrainerIsCountedAsARetryEvenIfItWritesACheckpointAtSigterm) {  // R16
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

TEST_F(ControllerTest, WatcherIsWokenByNewEvents) {
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

}  // namespace
}  // namespace nibble::jobs
