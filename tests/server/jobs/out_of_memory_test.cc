// Trainers that the kernel's OOM killer ends, alone or with the whole container (docs/faults.md, C7).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>

#include "server/jobs/oom_watch.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum JobState;

class OutOfMemoryTest : public ControllerFixture {
 protected:
  void SetUp() override {
    options_.oom_count = [this] { return oom_; };
    options_.memory_limit_bytes = 3'000'000;
    options_.plan_memory = [](const JobSpec&, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
      return PlannedMemory{2'000'000, "weights"};
    };
    ControllerFixture::SetUp();
  }
  std::string Start() {
    const std::string id = Submit();
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    return id;
  }
  void OomKill(FakeMachine::Trainer& trainer) {
    ++oom_->kills;
    machine_.Kill(trainer);
  }
  std::string LastReason(const std::string& id) { return Events(id).back().body.value("reason", ""); }
  // Kills server and trainer together, then starts a new server.
  void LoseBoth(const std::string& id) {
    machine_.Kill(Trainer(id));
    KillAndReopen();
    controller_->Tick();
  }

  std::optional<OomCount> oom_ = OomCount{.group = "g", .kills = 5};
};

TEST_F(OutOfMemoryTest, OomKillNamesPlanAndLimitAndTheJobBacksOff) {
  const std::string id = Start();
  OomKill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  const base::Json event = Events(id).back().body;
  EXPECT_EQ(event["reason"], "OUT_OF_MEMORY");
  EXPECT_THAT(event["message"].get<std::string>(), HasSubstr("planned memory of the job: 2000000 bytes"));
  EXPECT_THAT(event["message"].get<std::string>(), HasSubstr("memory limit of server and trainers: 3000000 bytes"));
  EXPECT_EQ(event["retry_in_s"], 10);
  EXPECT_THAT(observer_.attempts, ElementsAre("FAILED"));
}

TEST_F(OutOfMemoryTest, JobWithoutRetriesLeftFailsWithOutOfMemory) {
  options_.retry.max_retries = 1;
  KillAndReopen();
  const std::string id = Start();
  for (int i = 0; i < 2; ++i) {
    OomKill(Trainer(id));
    controller_->Tick();
    clock_.Advance(absl::Minutes(1));
    controller_->Tick();
  }
  const auto job = controller_->Get(id);
  ASSERT_EQ(job->state, kFailed);
  EXPECT_EQ(job->error->reason, "OUT_OF_MEMORY");
  EXPECT_EQ(job->error->code, "RESOURCE_EXHAUSTED");
}

TEST_F(OutOfMemoryTest, OtherEndsAreNotReportedAsOutOfMemory) {
  std::string id = Start();
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(LastReason(id), "TRAINER_SIGNAL") << "there was no OOM kill";
  ASSERT_TRUE(controller_->Cancel(id).ok());
  id = Start();
  ++oom_->kills;
  machine_.Kill(Trainer(id), SIGSEGV);
  controller_->Tick();
  EXPECT_EQ(LastReason(id), "TRAINER_SIGNAL") << "the OOM killer sends SIGKILL";
  ASSERT_TRUE(controller_->Cancel(id).ok());
  id = Start();
  clock_.Advance(absl::Seconds(11));
  controller_->Tick();
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(LastReason(id), "TRAINER_SIGNAL")
      << "the OOM kill of 11 s ago, which no trainer claimed, was another process's";
}

TEST_F(OutOfMemoryTest, OomKillOfAnAdoptedTrainerIsRecognized) {
  const std::string id = Start();
  KillAndReopen();
  OomKill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(LastReason(id), "OUT_OF_MEMORY");
  EXPECT_THAT(observer_.attempts, ElementsAre("FAILED"));
}

TEST_F(OutOfMemoryTest, OomKillWhileNoServerRanIsRecognized) {
  const std::string id = Start();
  OomKill(Trainer(id));
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(LastReason(id), "OUT_OF_MEMORY");
}

// The kernel kills the whole container: the next container counts from 0, but Kubernetes reports how the previous one
// ended.
TEST_F(OutOfMemoryTest, OomKillOfTheWholeContainerIsRecognizedIfItIsReported) {
  const std::string id = Start();
  oom_ = OomCount{.group = "g2", .kills = 0};
  options_.container_out_of_memory = true;
  LoseBoth(id);
  EXPECT_EQ(State(id), kQueued);
  const base::Json event = Events(id).back().body;
  EXPECT_EQ(event["reason"], "OUT_OF_MEMORY");
  EXPECT_THAT(event["message"].get<std::string>(), HasSubstr("planned memory of the job: 2000000 bytes"));
  EXPECT_EQ(event["retry_in_s"], 10);
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(LastReason(id), "TRAINER_SIGNAL") << "the report does not apply to later attempts";
}

// The kernel kills the whole container and Kubernetes does not report it. A job that causes this every time must not
// keep the server from serving.
TEST_F(OutOfMemoryTest, JobThatKillsItsContainerBacksOffFromTheSecondTime) {
  const std::string id = Start();
  oom_ = OomCount{.group = "g2", .kills = 0};
  LoseBoth(id);
  EXPECT_EQ(State(id), kPreparing) << "the first time it starts at once";
  EXPECT_THAT(observer_.attempts, ElementsAre("LOST"));
  oom_ = OomCount{.group = "g3", .kills = 0};
  LoseBoth(id);
  EXPECT_EQ(State(id), kQueued);
  EXPECT_EQ(Events(id).back().body["reason"], "ATTEMPT_LOST");
  EXPECT_EQ(Events(id).back().body["retry_in_s"], 10);
  KillAndReopen();
  clock_.Advance(absl::Milliseconds(9'999));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued) << "a restart does not shorten the backoff";
  clock_.Advance(absl::Milliseconds(1));
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  LoseBoth(id);
  EXPECT_EQ(Events(id).back().body["retry_in_s"], 20);
  EXPECT_EQ(database_->Get(id)->lost_in_row, 3);
}

TEST_F(OutOfMemoryTest, AnotherEndResetsTheCountOfLostAttempts) {
  const std::string id = Start();
  LoseBoth(id);
  EXPECT_EQ(database_->Get(id)->lost_in_row, 1);
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(database_->Get(id)->lost_in_row, 0);
  clock_.Advance(absl::Minutes(10));
  controller_->Tick();
  LoseBoth(id);
  EXPECT_EQ(State(id), kPreparing) << "the first lost attempt in a row starts again at once";
}

TEST(OomWatchTest, EachKillOfTheSameGroupIsClaimedOnce) {
  std::optional<OomCount> count = OomCount{"a", 7};
  OomWatch watch([&] { return count; });
  const absl::Duration now = absl::Seconds(100);
  watch.Look(now);
  EXPECT_FALSE(watch.Claim(now)) << "earlier kills do not count";
  count->kills = 9;
  watch.Look(now);
  EXPECT_TRUE(watch.Claim(now));
  EXPECT_TRUE(watch.Claim(now));
  EXPECT_FALSE(watch.Claim(now));
  count = OomCount{"b", 12};
  watch.Look(now);
  EXPECT_FALSE(watch.Claim(now));
  count.reset();
  watch.Look(now);
  EXPECT_FALSE(watch.Claim(now));
  count = OomCount{"b", 13};
  watch.Look(now);
  EXPECT_FALSE(watch.Claim(now)) << "the time of the kill is unknown";
  count->kills = 14;
  watch.Look(now);
  EXPECT_FALSE(watch.Claim(now + absl::Seconds(11)));
  OomWatch blind(nullptr);
  blind.Look(now);
  EXPECT_FALSE(blind.Claim(now));
  EXPECT_FALSE(blind.count().has_value());
}

}  // namespace
}  // namespace nibble::jobs
