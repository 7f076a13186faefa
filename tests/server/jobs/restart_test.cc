// Jobs survive kill -9 of the server (docs/faults.md, R1) and a broken report stream.
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

TEST_F(RestartTest, AcknowledgedJobsSurviveARestart) {
  const std::string a = Submit(Spec("a")), b = Submit(Spec("b"));
  controller_->Tick();
  KillAndReopen();
  EXPECT_EQ(controller_->List({}, 10)->jobs.size(), 2u);
  EXPECT_EQ(State(a), kPreparing);
  EXPECT_EQ(State(b), kQueued);
  EXPECT_EQ(base::Reason(controller_->Submit(Spec("b"), "").status()), "NAME_TAKEN") << "names are held again";
  EXPECT_EQ(base::Reason(state_->models->Delete("base")), "MODEL_IN_USE") << "inputs are held again";
  EXPECT_EQ(base::Reason(state_->datasets->Delete("train")), "DATASET_IN_USE");
}

// Shortens pages to two jobs, so that one page of the newest jobs does not have all open jobs.
class ShortPages : public FaultyDatabase {
 public:
  explicit ShortPages(std::unique_ptr<Database> real)
      : FaultyDatabase(std::move(real), std::numeric_limits<int>::max(), /*after=*/false) {}
  absl::StatusOr<JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel) override {
    return FaultyDatabase::List(query, std::min<std::int64_t>(limit, 2), cancel);
  }
};

TEST_F(RestartTest, OpenJobsAreRestoredHoweverManyAreNewer) {  // R1
  const std::string running = Submit(Spec("a"));
  controller_->Tick();
  const std::string next = Submit(Spec("b"));
  for (int i = 0; i < 4; ++i) Submit();
  OpenOn<ShortPages>();
  ASSERT_EQ(controller_->List({}, 10)->jobs.size(), 2u);
  Ready(Trainer(running));
  controller_->Tick();
  EXPECT_EQ(State(running), kRunning) << "the new server has adopted its trainer";
  EXPECT_EQ(machine_.num_alive(), 1);
  EXPECT_EQ(controller_->Get(next)->progress["queue_position"], 0);
  Finish(Trainer(running));
  machine_.Exit(Trainer(running), 0);
  controller_->Tick();
  EXPECT_EQ(State(running), kSucceeded);
  EXPECT_EQ(State(next), kPreparing) << "first come, first served";
}

// On a full disk, Open succeeds nevertheless (full_disk_test.cc).
TEST_F(RestartTest, OpenFailsIfOldRequestIdsCannotBeForgotten) {
  class Damaged : public FaultyDatabase {
   public:
    explicit Damaged(std::unique_ptr<Database> real)
        : FaultyDatabase(std::move(real), std::numeric_limits<int>::max(), /*after=*/false) {}
    absl::Status ForgetRequests(absl::Time) override { return absl::DataLossError("database: its file is damaged"); }
  };
  controller_.reset();
  Damaged database(std::move(database_));
  EXPECT_TRUE(absl::IsDataLoss(JobController::Open(*state_, database, *runner_, clock_, options_).status()));
}

TEST_F(RestartTest, LiveTrainerIsAdoptedAndNoEventIsLostOrDuplicated) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  Step(Trainer(id), 1);
  controller_->Tick();
  Kill();
  FakeMachine::Trainer& trainer = *machine_.All()[0];
  Step(trainer, 2);  // While no server runs.
  Step(trainer, 3);
  Open();
  EXPECT_EQ(machine_.num_alive(), 1);
  controller_->Tick();
  EXPECT_EQ(State(id), kRunning);
  EXPECT_EQ(controller_->Get(id)->attempt, 1);
  EXPECT_EQ(controller_->Get(id)->progress["step"], 3);
  Step(trainer, 4);
  Finish(trainer);
  machine_.Exit(trainer, 0);  // The new server cannot wait for its exit code, but reads its outcome.
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(Story(id),
            "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step step step step model state:SUCCEEDED");
}

TEST_F(RestartTest, AttemptThatDiedWithTheServerIsLostAndRetriedAtOnceFromItsCheckpoint) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  Ready(Trainer(id));
  Step(Trainer(id), 1);
  Checkpoint(Trainer(id), 1);
  Step(Trainer(id), 2);
  machine_.Kill(Trainer(id));
  ::testing::internal::CaptureStderr();
  KillAndReopen();
  controller_->Tick();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(R"("level":"warning","message":"attempt ended")"));
  EXPECT_THAT(observer_.attempts, ElementsAre("LOST"));
  EXPECT_EQ(database_->GetAttempt(id, 1)->state, "LOST");
  EXPECT_EQ(Events(id)[7].body["reason"], "ATTEMPT_LOST");
  EXPECT_EQ(Trainer(id).order.attempt, 2);
  EXPECT_EQ(Trainer(id).order.resume_step, 1);
  EXPECT_EQ(
      Story(id),
      "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step checkpoint step state:QUEUED state:PREPARING");
}

TEST_F(RestartTest, FirstAttemptWhoseServerDiedBeforeTheOrderCountsNoRetry) {
  const std::string id = Submit();
  for (const std::int64_t retries : {0, 1, 2}) {
    controller_->Tick();
    ASSERT_EQ(State(id), kPreparing);
    machine_.Kill(Trainer(id));
    std::filesystem::remove(Trainer(id).directory + "/attempt.json");
    KillAndReopen();
    controller_->Tick();
    EXPECT_EQ(controller_->Get(id)->retries, retries);
    clock_.Advance(absl::Minutes(10));
  }
}

TEST_F(RestartTest, BackoffContinuesAcrossRestarts) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  machine_.Kill(Trainer(id));
  controller_->Tick();
  ASSERT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["retry_in_s"], 10);
  const std::string why = Events(id).back().body["message"];
  EXPECT_NE(why, "");
  EXPECT_EQ(controller_->Get(id)->wait_reason, Events(id).back().body["reason"]);
  EXPECT_EQ(controller_->Get(id)->wait_message, why + "; retry 1 of 5 in 10 s");
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(controller_->Get(id)->wait_message, why + "; retry 1 of 5 in 6 s");
  for (const absl::Duration part : {absl::Seconds(5), absl::Milliseconds(999)}) {  // Two servers wait in turn.
    KillAndReopen();
    controller_->Tick();
    EXPECT_EQ(State(id), kQueued);
    clock_.Advance(part);
    controller_->Tick();
    EXPECT_EQ(State(id), kQueued);
  }
  clock_.Advance(absl::Milliseconds(1));
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_EQ(Trainer(id).order.attempt, 2);
}

TEST_F(RestartTest, BackoffThatEndedWhileNoServerRanIsOver) {
  const std::string id = Submit();
  controller_->Tick();
  machine_.Kill(Trainer(id));
  controller_->Tick();
  ASSERT_EQ(State(id), kQueued);
  Kill();
  clock_.Advance(absl::Seconds(10));
  Open();
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.attempt, 2);
}

TEST_F(RestartTest, AdoptedTrainerThatDiesWithoutAnOutcomeIsRetried) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  KillAndReopen();
  machine_.Kill(*machine_.All()[0]);
  controller_->Tick();
  EXPECT_EQ(database_->GetAttempt(id, 1)->state, "LOST");
  EXPECT_EQ(Trainer(id).order.attempt, 2);
}

TEST_F(RestartTest, TrainerThatFinishedWhileNoServerRanHasSucceeded) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Kill();
  Ready(trainer);
  Step(trainer, 4);
  Finish(trainer);
  machine_.Exit(trainer, 0);
  Open();
  // The output may have gigabytes. The first round hashes it, and not Open, so that the server starts without delay.
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_TRUE(absl::IsNotFound(state_->models->Get("out").status()));
  EXPECT_EQ(base::Reason(controller_->IngestReport(id, 1, trainer.order.token, {}).status()), "FENCED");
  EXPECT_EQ(machine_.num_alive(), 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_TRUE(state_->models->Get("out").ok());
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step model state:SUCCEEDED");
}

TEST_F(RestartTest, CancelBeforeTheFirstRoundLeavesNoModel) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Kill();
  Ready(trainer);
  Finish(trainer);
  machine_.Exit(trainer, 0);
  Open();
  const auto cancelled = controller_->Cancel(id);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->state, kCancelling);
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_TRUE(absl::IsNotFound(state_->models->Get("out").status()));
}

TEST_F(RestartTest, CancelSurvivesARestart) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  ASSERT_TRUE(controller_->Cancel(id).ok());
  KillAndReopen();  // Before the trainer was signalled.
  controller_->Tick();
  EXPECT_THAT(machine_.All()[0]->signals, ElementsAre(Runner::Signal::kTerminate));
  Stop(*machine_.All()[0], Outcome::Kind::kCancelled);
  machine_.Exit(*machine_.All()[0], 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
}

TEST_F(RestartTest, PauseSurvivesARestart) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  controller_->Tick();
  ASSERT_TRUE(controller_->Pause(id).ok());
  KillAndReopen();  // Before the trainer was signalled.
  EXPECT_EQ(State(id), kPausing);
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  EXPECT_THAT(trainer.signals, ElementsAre(Runner::Signal::kTerminate));
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), trainer.directory), Control::kPause);
  EXPECT_EQ(State(id), kPausing) << "the adopted trainer has time to write a checkpoint";
  Checkpoint(trainer, 3);
  Stop(trainer, Outcome::Kind::kPaused);
  machine_.Exit(trainer, kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(State(id), kPaused);
  controller_->Tick();
  EXPECT_EQ(machine_.num_alive(), 0) << "a paused job waits for its user";
  EXPECT_EQ(controller_->Resume(id)->state, kQueued);
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.attempt, 2);
  EXPECT_EQ(Trainer(id).order.resume_step, 3);
  EXPECT_EQ(controller_->Get(id)->retries, 0);
}

TEST_F(RestartTest, PausingJobWhoseTrainerEndedWithTheServerIsPaused) {
  for (const bool in_good_order : {true, false}) {
    SCOPED_TRACE(in_good_order);
    const std::string id = Submit();
    controller_->Tick();
    FakeMachine::Trainer& trainer = Trainer(id);
    Ready(trainer);
    Checkpoint(trainer, 1);
    controller_->Tick();
    ASSERT_TRUE(controller_->Pause(id).ok());
    controller_->Tick();
    Kill();
    if (in_good_order) {
      Checkpoint(trainer, 3);
      Stop(trainer, Outcome::Kind::kPaused);
    }
    machine_.Kill(trainer);
    Open();
    controller_->Tick();
    EXPECT_EQ(State(id), kPaused);
    ASSERT_TRUE(controller_->Resume(id).ok());
    controller_->Tick();
    EXPECT_EQ(Trainer(id).order.resume_step, in_good_order ? 3 : 1);
    machine_.Kill(Trainer(id));
    ASSERT_TRUE(controller_->Cancel(id).ok());
    controller_->Tick();
    EXPECT_EQ(State(id), kCancelled);
  }
}

TEST_F(RestartTest, OrderlyShutdownStopsTrainersAndTheirJobsResumeLater) {
  const std::string id = Submit();
  controller_->Tick();
  Ready(Trainer(id));
  Checkpoint(Trainer(id), 2);
  controller_->Tick();
  controller_->Shutdown(absl::Milliseconds(30));  // This trainer ignores SIGTERM.
  EXPECT_EQ(machine_.num_alive(), 0);
  EXPECT_THAT(machine_.All()[0]->signals, ElementsAre(Runner::Signal::kTerminate, Runner::Signal::kKill));
  EXPECT_EQ(*ReadControl(base::RealFileSystem(), machine_.All()[0]->directory), Control::kPreempt);
  EXPECT_EQ(base::Reason(controller_->Submit(Spec(), "").status()), "DRAINING");
  EXPECT_EQ(State(id), kQueued);
  KillAndReopen();
  EXPECT_EQ(controller_->Get(id)->retries, 0);
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.resume_step, 2);
}

TEST_F(RestartTest, LinesFromStreamAndDiskAreRecordedOnce) {
  const std::string id = Submit();
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  const std::string token = trainer.order.token;
  const std::string one = Ready(trainer), two = Step(trainer, 1), three = Step(trainer, 2);
  auto answer = controller_->IngestReport(id, 1, token, {one, two});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->acknowledged, 2);
  EXPECT_FALSE(answer->command.has_value());
  EXPECT_EQ(State(id), kRunning) << "at once, not when the server next reads the journal";
  EXPECT_EQ(controller_->Get(id)->progress["step"], 1);
  controller_->Tick();  // Reads all three from the disk.
  answer = controller_->IngestReport(id, 1, token, {two, three});
  EXPECT_EQ(answer->acknowledged, 3);
  // Line 4 was lost on the wire, but it is on the disk.
  Step(trainer, 3);
  answer = controller_->IngestReport(id, 1, token, {Step(trainer, 4)});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->acknowledged, 5);
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING step step step step");
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(controller_->IngestReport(id, 1, token, {})->command, Control::kCancel);
}

TEST_F(RestartTest, ReportsWithWrongAttemptOrTokenAreRefused) {
  const std::string id = Submit();
  controller_->Tick();
  const std::string token = Trainer(id).order.token;
  const std::string line = Ready(Trainer(id));
  const auto reason = [&](const std::string& job, std::int64_t attempt, const std::string& with,
                          const std::vector<std::string>& lines) {
    return base::Reason(controller_->IngestReport(job, attempt, with, lines).status());
  };
  EXPECT_EQ(reason(id, 1, "token-x", {line}), "TOKEN_INVALID");
  EXPECT_EQ(reason(id, 2, token, {line}), "FENCED");
  EXPECT_EQ(reason("job-x", 1, token, {line}), "JOB");
  EXPECT_EQ(controller_->IngestReport(id, 1, token, {"{"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reason(id, 1, token, {R"({"sequence":9,"time":"t","type":"log"})"}), "FIELD_VIOLATION");
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(reason(id, 1, token, {line}), "FENCED") << "a leftover process of attempt 1 must not write any more";
}

TEST_F(RestartTest, DamagedJournalIsReportedAndDoesNotBlockTheEnd) {
  const std::string id = Submit(Spec("out"));
  controller_->Tick();
  FakeMachine::Trainer& trainer = Trainer(id);
  Ready(trainer);
  std::ofstream(trainer.directory + "/journal.jsonl", std::ios::app) << "{\"sequence\":\n";
  controller_->Tick();
  Finish(trainer);
  machine_.Exit(trainer, 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING warning model state:SUCCEEDED");
  EXPECT_EQ(Events(id)[4].body["reason"], "JOURNAL_DAMAGED");
}

class CrashTest : public RestartTest {
 protected:
  // Plays one job from submission to model, with one trainer death, on a database that fails from write `fail_at` on.
  // Then restarts the server on the state that is left. Returns the number of writes before the restart.
  int PlayAndRecover(int fail_at, bool after) {
    auto faulty = std::make_unique<FaultyDatabase>(std::move(database_), fail_at, after);
    FaultyDatabase* watched = faulty.get();
    database_ = std::move(faulty);
    controller_.reset();
    runner_ = std::make_unique<FakeRunner>(machine_);
    controller_ = *JobController::Open(*state_, *database_, *runner_, clock_, options_, &observer_);
    const auto submitted = controller_->Submit(Spec("out"), "request");
    for (int round = 0; round < 4 && !watched->dead(); ++round) Play();
    const int writes = watched->writes();
    KillAndReopen();
    const auto job = controller_->Submit(Spec("out"), "request");
    EXPECT_TRUE(job.ok()) << job.status();
    if (submitted.ok()) {
      EXPECT_EQ(job->id, submitted->id) << "an acknowledged job is lost";
    }
    for (int round = 0; round < 8 && !IsFinal(State(job->id)); ++round) Play();
    EXPECT_EQ(State(job->id), kSucceeded);
    EXPECT_EQ(controller_->List({}, 10)->jobs.size(), 1u);
    EXPECT_EQ(state_->models->List().size(), 2u);
    EXPECT_TRUE(state_->models->Verify("out").ok());
    CheckStory(job->id);
    return writes;
  }
  // Advances every live trainer: the first attempt dies after a checkpoint, later ones finish.
  void Play() {
    clock_.Advance(absl::Seconds(360));
    controller_->Tick();
    for (FakeMachine::Trainer* trainer : machine_.All()) {
      if (trainer->end.has_value()) continue;
      EXPECT_LE(machine_.num_alive(), 1) << "two writers";
      const int from = static_cast<int>(trainer->order.resume_step);
      Ready(*trainer, from);
      controller_->Tick();
      for (int step = from + 1; step <= 4; ++step) Step(*trainer, step);
      if (trainer->order.attempt == 1) {
        Checkpoint(*trainer, 2);
        machine_.Kill(*trainer);
      } else {
        Finish(*trainer);
        machine_.Exit(*trainer, 0);
      }
    }
    controller_->Tick();
  }
  void CheckStory(const std::string& id) {
    const std::string story = Story(id);
    std::map<std::int64_t, std::vector<int>> steps;
    int models = 0, finals = 0;
    for (const Event& event : Events(id)) {
      if (event.type == "step") steps[event.attempt].push_back(event.body["step"].get<int>());
      models += event.type == "model";
      finals += event.type == "state" && IsFinal(*ParseJobState(event.body["state"].get<std::string>()));
    }
    EXPECT_EQ(models, 1) << story;
    EXPECT_EQ(finals, 1) << story;
    for (FakeMachine::Trainer* trainer : machine_.All()) {
      std::vector<int> wanted;
      for (int step = static_cast<int>(trainer->order.resume_step) + 1; step <= 4; ++step) wanted.push_back(step);
      EXPECT_EQ(steps[trainer->order.attempt], wanted) << story;
    }
  }
};

TEST_F(CrashTest, DeathOfTheServerAtAnyWriteLosesAndDuplicatesNothing) {  // R1
  const int writes = PlayAndRecover(/*fail_at=*/std::numeric_limits<int>::max(), /*after=*/false);
  ASSERT_GT(writes, 8);
  for (int fail_at = 1; fail_at <= writes; ++fail_at) {
    for (const bool after : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "write " << fail_at << (after ? " made" : " lost"));
      Kill();
      base::RealFileSystem().RemoveAll(temp_ / "state").IgnoreError();
      machine_.Forget();
      SetUp();
      PlayAndRecover(fail_at, after);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace nibble::jobs
