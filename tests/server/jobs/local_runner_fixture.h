// Jobs with real trainer processes: tiny_trainer.py under the local runner and the controller.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/sha256.h"
#include "server/jobs/controller.h"
#include "server/jobs/local_runner.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {

inline constexpr char kTrainer[] = NIBBLE_SOURCE_DIR "/tests/server/jobs/tiny_trainer.py";

class LocalRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = store::StateDirectory::Open(base::RealFileSystem(), temp_ / "state", {.min_free_bytes = 0});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto model = state_->models->Begin("base");
    std::ofstream((*model)->directory() + "/nibble.json") << R"({"format":"f32"})";
    ASSERT_TRUE((*model)->Commit().ok());
    auto dataset = state_->datasets->Begin("train");
    ASSERT_TRUE((*dataset)->Append("x").ok());
    const auto validate = [](const std::string&) { return base::ParseJson(R"({"format":"text"})"); };
    ASSERT_TRUE((*dataset)->Finish(base::Sha256Hex("x"), validate).ok());
    options_.retry.scale = 0.001;
    options_.tick = absl::Milliseconds(10);
    options_.cancel_grace = absl::Milliseconds(300);
    Open();
  }
  void Open() {
    database_ = *Database::Open(state_->paths.database());
    runner_ = MakeLocalRunner({kTrainer, {"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}});
    auto controller = JobController::Open(*state_, *database_, *runner_, base::RealClock(), options_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    controller_->Run({});
  }
  // Acts like kill -9 of the server: trainers continue.
  void Kill() {
    controller_.reset();
    runner_.reset();
    database_.reset();
  }
  void TearDown() override {
    if (controller_ != nullptr) controller_->Shutdown(absl::Seconds(5));
    Kill();
    // No test leaves a zombie or another child behind.
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
  StoredJob WaitFor(const std::string& id, const std::function<bool(const StoredJob&)>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    while (true) {
      const auto job = controller_->Get(id);
      EXPECT_TRUE(job.ok()) << job.status();
      if (!job.ok()) return {};
      if (done(*job)) return *job;
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << "still " << Name(job->state);
        return *job;
      }
      (void)controller_->WaitForEvents(id, job->last_sequence, 1, absl::Milliseconds(200));
    }
  }
  StoredJob WaitForEnd(const std::string& id) {
    return WaitFor(id, [](const StoredJob& job) { return IsFinal(job.state); });
  }
  StoredJob WaitForState(const std::string& id, JobState state) {
    return WaitFor(id, [state](const StoredJob& job) { return job.state == state; });
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> Steps(const std::string& id) {  // (attempt, step)
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;
    const auto page = controller_->Events(id, 0, 10'000);
    for (const Event& event : page->events) {
      if (event.type == "step") steps.emplace_back(event.attempt, event.body["step"].get<std::int64_t>());
    }
    return steps;
  }
  // While this file exists, trainers wait after step 3.
  std::string Hold() const { return state_->paths.dataset("train") + "/hold"; }
  // The pid in a handle "PID/START_TICKS".
  static pid_t PidOf(const std::string& handle) { return static_cast<pid_t>(std::stol(handle)); }
  std::string Log(const std::string& id, int attempt) const {
    return *base::RealFileSystem().Read(state_->paths.attempt(id, attempt) + "/trainer.log", 1 << 20);
  }
  pid_t Pid(const std::string& id) { return PidOf(database_->GetAttempt(id, database_->Get(id)->attempt)->handle); }

  nibble::testing::TempDirectory temp_;
  ControllerOptions options_;
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<JobController> controller_;
};

}  // namespace nibble::jobs
