// Expired jobs and events are removed in pieces; the others stay complete (docs/faults.md, C11).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using enum JobState;

class RetentionTest : public ControllerFixture {
 protected:
  void SetUp() override {
    options_.retention = {.final_job_ttl = absl::Hours(1), .keep_step_events = 3};
    options_.queue.max_running = 2;
    options_.no_progress_timeout = absl::ZeroDuration();  // off, because hours pass without a report of a trainer
    ControllerFixture::SetUp();
  }
  std::string Succeed(const std::string& output, int steps = 1) {
    const std::string id = Submit(Spec(output));
    controller_->Tick();
    Ready(Trainer(id));
    for (int i = 1; i <= steps; ++i) Step(Trainer(id), i);
    Finish(Trainer(id));
    machine_.Exit(Trainer(id), 0);
    controller_->Tick();
    EXPECT_EQ(State(id), kSucceeded);
    return id;
  }
  void TickFor(absl::Duration time) {
    clock_.Advance(time);
    for (int i = 0; i < 20; ++i) controller_->Tick();
  }
};

TEST_F(RetentionTest, ExpiredJobIsDeletedAndItsModelStays) {
  const std::string ended = Succeed("first");
  const std::string running = Submit(Spec("second"));
  controller_->Tick();
  Ready(Trainer(running));
  TickFor(absl::Minutes(59));
  const std::string later = Succeed("third");
  EXPECT_TRUE(controller_->Get(ended).ok());
  TickFor(absl::Minutes(2));
  EXPECT_TRUE(absl::IsNotFound(controller_->Get(ended).status()));
  EXPECT_FALSE(files_->Exists(state_->paths.job(ended)));
  EXPECT_TRUE(state_->models->Get("first").ok());
  EXPECT_EQ(State(later), kSucceeded);
  EXPECT_EQ(State(running), kRunning);
  TickFor(absl::Hours(2));
  EXPECT_TRUE(absl::IsNotFound(controller_->Get(later).status()));
  EXPECT_EQ(State(running), kRunning) << "the job has not ended";
}

TEST_F(RetentionTest, StepsOfAnEndedJobAreThinnedAndItsLogStillEnds) {
  const std::string id = Succeed("out", 9);
  TickFor(absl::Minutes(1));
  const auto page = controller_->Events(id, 0, 100);
  ASSERT_TRUE(page.ok()) << page.status();
  std::string story;
  for (const Event& event : page->events) story += event.type + " ";
  EXPECT_EQ(story, "state state state state step step step model state ");
  EXPECT_TRUE(page->ended);
  EXPECT_EQ(controller_->Get(id)->progress["step"], 4)
      << "the step of a succeeded job is its max_steps; thinning does not change it";
  EXPECT_TRUE(controller_->Events(id, page->events[4].sequence, 100)->ended) << "a watch can continue after any event";
}

TEST_F(RetentionTest, WithoutFlagsEverythingIsKept) {
  options_.retention = {};
  KillAndReopen();
  const std::string id = Succeed("out", 9);
  TickFor(absl::Hours(24 * 365));
  EXPECT_EQ(Events(id).size(), 15u);
}

}  // namespace
}  // namespace nibble::jobs
