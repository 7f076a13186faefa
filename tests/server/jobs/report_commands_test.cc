// Commands and addresses that trainers get from the controller.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/server/jobs/controller_fixture.h"
#include "tests/support/soon.h"

namespace nibble::jobs {
namespace {

class ReportCommandsTest : public ControllerFixture {
 protected:
  // The answer to a report without lines: a heartbeat.
  ReportAnswer Heartbeat(const std::string& id) {
    const FakeMachine::Trainer& trainer = Trainer(id);
    const auto answer = controller_->IngestReport(id, trainer.order.attempt, trainer.order.token, {});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.value_or(ReportAnswer());
  }
  std::string RunningJob() {
    const std::string id = Submit();
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    return id;
  }
};

TEST_F(ReportCommandsTest, AnswersCarryACheckpointRequestUntilItsFileIsGone) {
  const std::string id = RunningJob();
  EXPECT_EQ(Heartbeat(id).checkpoint_request, "");
  ASSERT_TRUE(controller_->Checkpoint(id).ok());
  const std::string& directory = Trainer(id).directory;
  const std::string request = Heartbeat(id).checkpoint_request;
  EXPECT_NE(request, "");
  EXPECT_EQ(CheckpointRequest(base::RealFileSystem(), directory), request) << "both have the same id";
  // This checkpoint may have begun before the request. The request ends only when the trainer removes the file.
  Checkpoint(Trainer(id), 1);
  controller_->Tick();
  EXPECT_EQ(Heartbeat(id).checkpoint_request, request);
  ASSERT_TRUE(ClearCheckpointRequest(base::RealFileSystem(), directory).ok());
  controller_->Tick();
  EXPECT_EQ(Heartbeat(id).checkpoint_request, "");
  ASSERT_TRUE(controller_->Checkpoint(id).ok());
  EXPECT_NE(Heartbeat(id).checkpoint_request, request) << "another request has another id";
}

TEST_F(ReportCommandsTest, NextServerRepeatsTheCheckpointRequestOfAKilledOne) {
  const std::string id = RunningJob();
  ASSERT_TRUE(controller_->Checkpoint(id).ok());
  const std::string request = Heartbeat(id).checkpoint_request;
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(Heartbeat(id).checkpoint_request, request);
}

TEST_F(ReportCommandsTest, UnservedCheckpointRequestPassesToTheNextAttempt) {
  options_.retry.scale = 0;
  KillAndReopen();
  const std::string id = RunningJob();
  ASSERT_TRUE(controller_->Checkpoint(id).ok());
  machine_.Kill(Trainer(id));
  controller_->Tick();
  controller_->Tick();
  ASSERT_EQ(Trainer(id).order.attempt, 2);
  EXPECT_NE(Heartbeat(id).checkpoint_request, "");
  EXPECT_EQ(CheckpointRequest(base::RealFileSystem(), Trainer(id).directory), Heartbeat(id).checkpoint_request);
}

TEST_F(ReportCommandsTest, AnswersCarryAStopBesideACheckpointRequest) {
  const std::string id = RunningJob();
  ASSERT_TRUE(controller_->Checkpoint(id).ok());
  ASSERT_TRUE(controller_->Pause(id).ok());
  const ReportAnswer paused = Heartbeat(id);
  EXPECT_EQ(paused.command, Control::kPause) << "before the next round of the scheduler";
  EXPECT_NE(paused.checkpoint_request, "");
  ASSERT_TRUE(controller_->Cancel(id, {}, /*keep_checkpoint=*/true).ok());
  EXPECT_EQ(Heartbeat(id).command, Control::kCancelKeeping);
}

TEST_F(ReportCommandsTest, EveryAttemptReadsTheAuthoritiesAgain) {
  options_.retry.scale = 0;
  KillAndReopen();
  std::atomic<int> reads = 0;
  const std::string id = Submit();
  controller_->Run({"nibble.ml.svc:50052", [&reads] { return "authority " + std::to_string(++reads); }});
  const auto began = [&](int attempt) {
    return testing_support::Soon([&] { return machine_.Find(state_->paths.attempt(id, attempt)) != nullptr; });
  };
  ASSERT_TRUE(began(1));
  EXPECT_EQ(Trainer(id).order.report_address, "nibble.ml.svc:50052");
  EXPECT_EQ(Trainer(id).order.report_ca, "authority 1");
  machine_.Kill(Trainer(id));
  ASSERT_TRUE(began(2));
  EXPECT_EQ(machine_.Find(state_->paths.attempt(id, 2))->order.report_ca, "authority 2");
  controller_.reset();  // its threads use `reads`
}

}  // namespace
}  // namespace nibble::jobs
