// The local runner with real processes, alone and under the controller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/jobs/controller.h"
#include "server/jobs/process.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum JobState;

constexpr char kTrainer[] = NIBBLE_SOURCE_DIR "/tests/server/jobs/tiny_trainer.py";

std::vector<std::string> Environment() { return {"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}; }

class LocalRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = store::StateDirectory::Open(base::RealFileSystem(), temp_ / "state");
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto model = state_->models->Begin("base");
    std::ofstream((*model)->directory() + "/nibble.json") << R"({"format":"f32"})";
    ASSERT_TRUE((*model)->Commit().ok());
    auto dataset = state_->datasets->Begin("train");
    ASSERT_TRUE((*dataset)->Append("x").ok());
    const auto validate = [](const std::string&) { return base::ParseJson(R"({"format":"text"})"); };
    ASSERT_TRUE((*dataset)->Finish(base::Sha256Hex("x"), validate).ok());
    options_.min_free_bytes = 0;
    options_.retry.scale = 0.001;
    options_.tick = absl::Milliseconds(10);
    options_.cancel_grace = absl::Milliseconds(300);
    Open();
  }
  void Open() {
    database_ = *Database::Open(state_->layout.database());
    runner_ = MakeLocalRunner({kTrainer, Environment()});
    auto controller = JobController::Open(*state_, *database_, *runner_, base::RealClock(), options_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    controller_->Run("");
  }
  void Kill() {
    controller_.reset();
    runner_.reset();
    database_.reset();
  }
  void TearDown() override {
    if (controller_ != nullptr) controller_->Shutdown(absl::Seconds(5));
    Kill();
    // No zombie and no child is left behind by any test.
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }
  std::string Submit(const std::string& behaviour, const std::string& output = "") {
    JobSpec spec;
    spec.base_model = "base";
    spec.train_dataset = "train";
    spec.output_model = output;
    spec.labels["behaviour"] = behaviour;
    const auto job = controller_->Submit(spec, "");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->id : "";
  }
  JobRecord WaitFor(const std::string& id, const std::function<bool(const JobRecord&)>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (true) {
      const auto job = controller_->Get(id);
      EXPECT_TRUE(job.ok());
      if (!job.ok() || done(*job)) return *job;
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << "still " << Name(job->state);
        return *job;
      }
      (void)controller_->WaitForEvents(id, job->last_sequence, 1, absl::Milliseconds(200));
    }
  }
  JobRecord WaitForEnd(const std::string& id) {
    return WaitFor(id, [](const JobRecord& job) { return IsFinal(job.state); });
  }
  JobRecord WaitForState(const std::string& id, JobState state) {
    return WaitFor(id, [state](const JobRecord& job) { return job.state == state; });
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> Steps(const std::string& id) {  // (attempt, step)
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;
    const auto page = controller_->Events(id, 0, 10'000);
    for (const Event& event : page->events) {
      if (event.type == "step") steps.emplace_back(event.attempt, event.body["step"].get<std::int64_t>());
    }
    return steps;
  }
  std::string Hold() const { return state_->layout.dataset("train") + "/hold"; }
  std::string Log(const std::string& id, int attempt) const {
    return *base::RealFileSystem().Read(state_->layout.attempt(id, attempt) + "/trainer.log", 1 << 20);
  }
  pid_t Pid(const std::string& id) {
    return static_cast<pid_t>(database_->GetAttempt(id, database_->Get(id)->attempt)->process->pid);
  }

  nibble::testing::TempDirectory temp_;
  ControllerOptions options_;
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<JobController> controller_;
};

TEST_F(LocalRunnerTest, JobRunsToAModel) {
  const std::string id = Submit("ok", "out");
  const JobRecord job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.progress["step"], 6);
  EXPECT_EQ(job.progress["eval_loss_int8"], 0.5);
  EXPECT_TRUE(state_->models->Get("out").ok());
  EXPECT_EQ(Steps(id).size(), 6u);
  const std::string log = Log(id, 1);
  EXPECT_THAT(log, HasSubstr("hello from the trainer"));
  EXPECT_THAT(log, HasSubstr("PATH"));
  EXPECT_THAT(log, Not(HasSubstr("HOME")));
  EXPECT_EQ(controller_->Checkpoints(id)->back().step, 6);
}

TEST_F(LocalRunnerTest, BadInputFailsWithTheTrainersWords) {
  const JobRecord job = WaitForEnd(Submit("bad_input"));
  EXPECT_EQ(job.state, kFailed);
  EXPECT_EQ(job.attempt, 1);
  EXPECT_EQ(job.error->message, "nothing to learn");
}

TEST_F(LocalRunnerTest, KilledTrainerGoesOnFromItsCheckpoint) {  // R2
  const std::string id = Submit("crash", "out");
  const JobRecord job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 2);
  EXPECT_THAT(Steps(id), ElementsAre(std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(1, 4), std::pair(1, 5),
                                     std::pair(2, 5), std::pair(2, 6)));
}

TEST_F(LocalRunnerTest, CancelEndsAListeningTrainerAndADeafOne) {
  for (const char* behaviour : {"forever", "deaf"}) {
    const std::string id = Submit(behaviour, "out");
    WaitForState(id, kRunning);
    const pid_t pid = Pid(id);
    const auto before = std::chrono::steady_clock::now();
    ASSERT_TRUE(controller_->Cancel(id).ok());
    EXPECT_EQ(WaitForEnd(id).state, kCancelled);
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
    EXPECT_EQ(::kill(pid, 0), -1) << "the trainer is gone";
    EXPECT_FALSE(state_->models->Get("out").ok());
  }
}

TEST_F(LocalRunnerTest, PauseAndResume) {
  const std::string id = Submit("forever");
  WaitForState(id, kRunning);
  ASSERT_TRUE(controller_->Pause(id).ok());
  EXPECT_EQ(WaitForState(id, kPaused).retries, 0);
  ASSERT_TRUE(controller_->Resume(id).ok());
  WaitFor(id, [](const JobRecord& job) { return job.state == kRunning && job.attempt == 2; });
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(WaitForEnd(id).state, kCancelled);
}

TEST_F(LocalRunnerTest, WhatTheTrainerStartedEndsWithIt) {
  const std::string id = Submit("fork");
  EXPECT_EQ(WaitForEnd(id).state, kSucceeded);
  // The sleep of the trainer's had the attempt's lock: it is free, so it is dead.
  EXPECT_EQ(runner_->Adopt(state_->layout.attempt(id, 1), std::nullopt).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LocalRunnerTest, ShutdownCheckpointsAndTheNextServerGoesOn) {
  const std::string id = Submit("forever");
  WaitForState(id, kRunning);
  controller_->Shutdown(absl::Seconds(10));
  EXPECT_EQ(controller_->Get(id)->state, kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 0);
  EXPECT_EQ(controller_->Checkpoints(id)->size(), 1u);
  Kill();
  Open();
  WaitFor(id, [](const JobRecord& job) { return job.state == kRunning && job.attempt == 2; });
  ASSERT_TRUE(controller_->Cancel(id).ok());
  WaitForEnd(id);
}

TEST_F(LocalRunnerTest, LiveTrainerIsAdoptedByTheNextServer) {  // R1
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok", "out");
  WaitFor(id, [](const JobRecord& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  Open();
  EXPECT_EQ(controller_->Get(id)->state, kRunning);
  EXPECT_EQ(Pid(id), pid);
  std::filesystem::remove(Hold());
  const JobRecord job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 1);
  EXPECT_EQ(Steps(id).size(), 6u);
}

TEST_F(LocalRunnerTest, TrainerWhosePidWasNeverRecordedIsAdoptedToo) {
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok");
  WaitFor(id, [](const JobRecord& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  const std::string directory = state_->layout.attempt(id, 1);
  auto runner = MakeLocalRunner({kTrainer, Environment()});
  const auto found = runner->Adopt(directory, std::nullopt);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->pid, pid);
  EXPECT_FALSE(runner->Poll(directory).has_value());
  Open();
  std::filesystem::remove(Hold());
  EXPECT_EQ(WaitForEnd(id).attempt, 1);
}

TEST_F(LocalRunnerTest, PidThatIsAnothersNowIsNotAdopted) {
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok");
  WaitFor(id, [](const JobRecord& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  ::kill(-pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  // As if the number had been given away: this process' own pid stands in the record.
  auto database = *Database::Open(state_->layout.database());
  ASSERT_TRUE(database->RecordProcess(id, 1, {::getpid(), *StartTicks(::getpid())}).ok());
  database.reset();
  std::filesystem::remove(Hold());
  Open();
  const JobRecord job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 2);
}

TEST_F(LocalRunnerTest, ProgramThatIsNotThereIsSaid) {
  auto runner = MakeLocalRunner({temp_ / "nothing", Environment()});
  const auto started = runner->Start(temp_.path());
  EXPECT_EQ(started.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("No such file"));
}

TEST(LocalRunnerEnvironmentTest, OnlyAllowedVariablesPass) {
  EXPECT_THAT(AllowedEnvironment({"PATH=/bin", "SECRET=1", "PATHOLOGY=1", "LD_PRELOAD=x", "HOME", "CUDA_VISIBLE_DEVICES=0"}),
              ElementsAre("PATH=/bin", "CUDA_VISIBLE_DEVICES=0"));
}

TEST(ProcessTest, StartTicksTellAProcessFromALaterOne) {
  const auto mine = StartTicks(::getpid());
  ASSERT_TRUE(mine.has_value());
  EXPECT_EQ(StartTicks(::getpid()), mine);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(3);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(StartTicks(child), std::nullopt) << "a zombie is gone";
  const ExitStatus status = Reap(child, true);
  EXPECT_EQ(status.kind, ExitStatus::Kind::kExited);
  EXPECT_EQ(status.value, 3);
  EXPECT_EQ(Reap(child, true).kind, ExitStatus::Kind::kUnknown);
}

}  // namespace
}  // namespace nibble::jobs
