// Many kills at random moments (docs/faults.md, R1 and R2): real processes, real time. To kill the server, the test
// destroys its controller without a shutdown.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "server/base/sha256.h"
#include "server/jobs/controller.h"
#include "server/jobs/local_runner.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

class KillLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    state_ = *store::StateDirectory::Open(base::RealFileSystem(), temp_ / "state", {.min_free_bytes = 0});
    auto model = state_->models->Begin("base");
    ASSERT_TRUE((*model)->Commit().ok());
    auto dataset = state_->datasets->Begin("train");
    ASSERT_TRUE((*dataset)->Append("x").ok());
    const auto validate = [](const std::string&) { return base::ParseJson(R"({"format":"text"})"); };
    ASSERT_TRUE((*dataset)->Finish(base::Sha256Hex("x"), validate).ok());
    options_.retry.scale = 0.0001;
    options_.retry.max_retries = 1'000'000;
    options_.tick = absl::Milliseconds(5);
    Open();
  }
  void Open() {
    const auto before = std::chrono::steady_clock::now();
    database_ = *Database::Open(state_->paths.database());
    runner_ = MakeLocalRunner({NIBBLE_SOURCE_DIR "/tests/server/jobs/tiny_trainer.py", {"PATH=/usr/bin:/bin"}});
    auto controller = JobController::Open(*state_, *database_, *runner_, base::RealClock(), options_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    controller_->Run({});
    // Detects a hang; a start on a busy disk takes seconds.
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
  }
  void KillServer() {
    controller_.reset();
    runner_.reset();
    database_.reset();
  }
  // True if there was a trainer to kill.
  bool KillTrainer(const std::string& id) {
    const auto job = database_->Get(id);
    const auto attempt = database_->GetAttempt(id, job->attempt);
    if (!attempt.ok() || attempt->handle.empty() || attempt->state != "RUNNING") return false;
    // The handle is "PID/START_TICKS"; the trainer leads the process group PID.
    return ::kill(static_cast<pid_t>(-std::stol(attempt->handle)), SIGKILL) == 0;
  }
  std::string Submit() {
    JobSpec spec;
    spec.base_model = "base";
    spec.train_dataset = "train";
    const auto job = controller_->Submit(spec, "");
    EXPECT_TRUE(job.ok()) << job.status();
    return job->id;
  }
  void SleepUpTo(int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(0, ms)(random_)));
  }
  // Checks that the job succeeds with one model, has every event once, and repeats at most two steps after a kill: the
  // trainer saves every second step.
  void CheckEnd(const std::string& id) {
    std::int64_t after = 0;
    std::vector<Event> events;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
      const auto page = controller_->WaitForEvents(id, after, 1000, absl::Seconds(1));
      ASSERT_TRUE(page.ok()) << page.status();
      events.insert(events.end(), page->events.begin(), page->events.end());
      if (!events.empty()) after = events.back().sequence;
      if (page->ended) break;
    }
    std::int64_t sequence = 1, last_step = 0;
    int models = 0;
    for (const Event& event : events) {
      ASSERT_EQ(event.sequence, sequence++);
      models += event.type == "model";
      if (event.type == "state" && event.body.contains("resumed_step")) {
        const auto resumed = event.body["resumed_step"].get<std::int64_t>();
        EXPECT_LE(last_step - resumed, 2) << "lost steps";
        last_step = resumed;
      }
      if (event.type == "step") {
        const auto step = event.body["step"].get<std::int64_t>();
        EXPECT_EQ(step, last_step + 1);
        last_step = step;
      }
    }
    EXPECT_EQ(models, 1);
    EXPECT_EQ(last_step, 6);  // STEPS of tiny_trainer.py
    EXPECT_EQ(controller_->Get(id)->state, JobState::kSucceeded);
    EXPECT_TRUE(state_->models->Verify(id).ok());
  }

  nibble::testing::TempDirectory temp_;
  std::mt19937 random_{12345};
  ControllerOptions options_;
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<JobController> controller_;
};

TEST_F(KillLoopTest, JobsSurviveRepeatedKillsOfTheServer) {  // R1
  int kills = 0;
  while (kills < NIBBLE_SERVER_KILLS) {
    const std::string id = Submit();
    for (int i = 0; i < 5; ++i, ++kills) {
      SleepUpTo(150);
      // Sometimes server and trainer are killed together.
      if (kills % 3 == 0) KillTrainer(id);
      KillServer();
      Open();
      ASSERT_TRUE(controller_->Get(id).ok()) << "an acknowledged job is lost";
    }
    CheckEnd(id);
    if (HasFailure()) return;
  }
  controller_->Shutdown(absl::Seconds(5));
}

TEST_F(KillLoopTest, JobsSurviveRepeatedKillsOfTheTrainer) {  // R2
  for (int kills = 0; kills < NIBBLE_TRAINER_KILLS;) {
    const std::string id = Submit();
    for (int i = 0; i < 3; ++i) {
      SleepUpTo(250);
      kills += KillTrainer(id) ? 1 : 0;
    }
    CheckEnd(id);
    if (HasFailure()) return;
  }
  controller_->Shutdown(absl::Seconds(5));
}

}  // namespace
}  // namespace nibble::jobs
