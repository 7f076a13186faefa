#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/sha256.h"
#include "server/jobs/controller.h"
#include "tests/server/jobs/fake_runner.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {

// A state directory with model "base" and datasets "train" and "eval", a fake machine, and a controller that can be
// killed.
class ControllerFixture : public ::testing::Test {
 protected:
  class Observer : public JobObserver {
   public:
    void OnJobCreated(const StoredJob&) override { ++created; }
    void OnAttemptStarted(const StoredJob& job) override { started.push_back(job.attempt); }
    void OnArtifactDamaged(const std::string&) override { ++damaged; }
    void OnJobEnded(const StoredJob& job) override { ended.push_back(Name(job.state)); }
    void OnEvent(const StoredJob&, const Event& event) override { events.push_back(event.type); }
    void OnModelPublished(const StoredJob&, const store::StoredModel& model) override { models.push_back(model.name); }
    void OnAttemptEnded(const StoredJob&, const std::string& state) override { attempts.push_back(state); }
    std::vector<std::string> events, models, attempts, ended;
    std::vector<std::int64_t> started;
    int created = 0, damaged = 0;
  };

  void SetUp() override {
    Open();
    AddModel("base");
    AddDataset("train");
    AddDataset("eval");
  }
  void OpenStores() {
    auto state = store::StateDirectory::Open(*files_, temp_ / "state", {.min_free_bytes = min_free_bytes_});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto database = Database::Open(state_->paths.database());
    ASSERT_TRUE(database.ok()) << database.status();
    database_ = *std::move(database);
  }
  void Open() {
    OpenStores();
    runner_ = std::make_unique<FakeRunner>(machine_);
    auto controller = JobController::Open(*state_, *database_, *runner_, clock_, options_, &observer_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
  }
  // Acts like kill -9 of the server: nothing is recorded or reported.
  void Kill() {
    controller_.reset();
    runner_.reset();
    database_.reset();
    state_.reset();
  }
  // Opens the controller again, on a `Wrapper` around its database.
  template <typename Wrapper>
  Wrapper& OpenOn() {
    controller_.reset();
    runner_ = std::make_unique<FakeRunner>(machine_);
    auto wrapper = std::make_unique<Wrapper>(std::move(database_));
    Wrapper& wrapped = *wrapper;
    database_ = std::move(wrapper);
    auto controller = JobController::Open(*state_, *database_, *runner_, clock_, options_, &observer_);
    EXPECT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    return wrapped;
  }
  void KillAndReopen() {
    Kill();
    Open();
  }

  static void WriteFile(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  void AddModel(const std::string& name) {
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok());
    WriteFile((*pending)->directory() + "/nibble.json", R"({"format":"f32"})");
    ASSERT_TRUE((*pending)->Commit().ok());
  }
  void AddDataset(const std::string& name) {
    auto pending = state_->datasets->Begin(name);
    ASSERT_TRUE(pending.ok());
    const std::string text = "{\"text\":\"a\"}\n";
    ASSERT_TRUE((*pending)->Append(text).ok());
    const auto validate = [](const std::string&) -> absl::StatusOr<base::Json> {
      return *base::ParseJson(R"({"format":"text","rows":1})");
    };
    ASSERT_TRUE((*pending)->Finish(base::Sha256Hex(text), validate).ok());
  }

  static JobSpec Spec(const std::string& output = "") {
    JobSpec spec;
    spec.base_model = "base";
    spec.train_dataset = "train";
    spec.output_model = output;
    spec.run.max_steps = 4;
    return spec;
  }
  std::string Submit(const JobSpec& spec = Spec()) {
    const auto job = controller_->Submit(spec, "");
    EXPECT_TRUE(job.ok()) << job.status();
    if (job.ok()) AwaitPlan(job->id);
    return job.ok() ? job->id : "";
  }
  // Returns when the job is no longer PLANNING.
  void AwaitPlan(const std::string& id) {
    std::int64_t after = 0;
    while (true) {
      const auto job = controller_->Get(id);
      ASSERT_TRUE(job.ok()) << job.status();
      if (job->state != JobState::kPlanning) return;
      const auto page = controller_->WaitForEvents(id, after, 10, absl::Seconds(60));
      ASSERT_TRUE(page.ok()) << page.status();
      if (!page->events.empty()) after = page->events.back().sequence;
    }
  }
  JobState State(const std::string& id) {
    const auto job = controller_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->state : JobState::kFailed;
  }
  // The trainer of the job's current attempt.
  FakeMachine::Trainer& Trainer(const std::string& id) {
    const auto job = database_->Get(id);
    FakeMachine::Trainer* trainer = machine_.Find(state_->paths.attempt(id, job->attempt));
    EXPECT_NE(trainer, nullptr);
    return *trainer;
  }
  static std::string Write(FakeMachine::Trainer& trainer, const std::string& type, const std::string& fields) {
    const auto line = trainer.journal->Append(type, *base::ParseJson(fields));
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() ? *line : "";
  }
  static std::string Ready(FakeMachine::Trainer& trainer, int step = 0) {
    return Write(trainer, "state", R"({"state":"RUNNING","max_steps":4,"step":)" + std::to_string(step) + "}");
  }
  static std::string Step(FakeMachine::Trainer& trainer, int step) {
    return Write(trainer, "step",
                 R"({"loss":2.0,"lr":0.1,"grad_norm":1.0,"tokens":64,"step_ms":10,"kernel_launches":5,)"
                 R"("peak_memory_bytes":100,"step":)" +
                     std::to_string(step) + "}");
  }
  static void Checkpoint(FakeMachine::Trainer& trainer, int step, const std::string& metrics = "") {
    auto pending = store::BeginCheckpoint(base::RealFileSystem(), trainer.directory, step);
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile(pending->path() + "/adapter.bin", "step " + std::to_string(step));
    if (!metrics.empty()) WriteFile(pending->path() + "/" + store::kCheckpointMetricsFile, metrics);
    ASSERT_TRUE(pending->Commit().ok());
    Write(trainer, "checkpoint", R"({"step":)" + std::to_string(step) + "}");
  }
  // Writes output and outcome, as at the end of a good run. The trainer does not exit: call FakeMachine::Exit.
  static void Finish(FakeMachine::Trainer& trainer) {
    auto pending = store::PendingDirectory::Create(base::RealFileSystem(), trainer.order.output_directory);
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile(pending->path() + "/model.safetensors", "weights");
    WriteFile(pending->path() + "/nibble.json", R"({"format":"lora","weights_digest":"abc"})");
    ASSERT_TRUE(pending->Commit().ok());
    Outcome outcome;
    outcome.kind = Outcome::Kind::kOk;
    outcome.exit_code = 0;
    outcome.output_directory = trainer.order.output_directory;
    outcome.final["eval_loss_int8"] = 1.5;
    ASSERT_TRUE(WriteOutcome(base::RealFileSystem(), trainer.directory, outcome).ok());
  }
  static void Fail(FakeMachine::Trainer& trainer, const std::string& reason, int exit_code) {
    Outcome outcome;
    outcome.kind = Outcome::Kind::kFailed;
    outcome.code = "INVALID_ARGUMENT";
    outcome.reason = reason;
    outcome.message = "why";
    outcome.exit_code = exit_code;
    ASSERT_TRUE(WriteOutcome(base::RealFileSystem(), trainer.directory, outcome).ok());
  }
  static void Stop(FakeMachine::Trainer& trainer, Outcome::Kind kind) {
    Outcome outcome;
    outcome.kind = kind;
    outcome.exit_code = kExitTempFail;
    ASSERT_TRUE(WriteOutcome(base::RealFileSystem(), trainer.directory, outcome).ok());
  }

  std::vector<Event> Events(const std::string& id) {
    const auto page = controller_->Events(id, 0, 10'000);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->events : std::vector<Event>();
  }
  // The job's events in order: "state:QUEUED state:PREPARING step step ...". Checks that sequences are 1, 2, 3 ...
  std::string Story(const std::string& id) {
    std::string story;
    std::int64_t wanted = 1;
    for (const Event& event : Events(id)) {
      EXPECT_EQ(event.sequence, wanted++);
      story += (story.empty() ? "" : " ") + event.type;
      if (event.type == "state") story += ":" + event.body["state"].get<std::string>();
    }
    return story;
  }

  nibble::testing::TempDirectory temp_;
  base::FileSystem* files_ = &base::RealFileSystem();  // of the server; trainers use the real file system
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  FakeMachine machine_{clock_};
  ControllerOptions options_;
  std::uint64_t min_free_bytes_ = 0;
  Observer observer_;
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<JobController> controller_;
};

}  // namespace nibble::jobs
