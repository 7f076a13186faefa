// PLANNING is the first state of every job: the server reads the job's rows in it, after Submit has answered.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using enum JobState;

// Plans of dataset "slow" wait until Finish or FinishOne, or until they are cancelled; all others end at once.
class PlanningTest : public ControllerFixture {
 protected:
  void SetUp() override {
    options_.plan_memory = [this](const JobSpec& spec,
                                  const base::CancelToken& cancel) -> absl::StatusOr<PlannedMemory> {
      base::MutexLock lock(mutex_);
      begun_.push_back(spec.output_model);
      changed_.NotifyAll();
      const auto finished = [&] { return finish_ || finish_one_ == spec.output_model; };
      while (spec.train_dataset == "slow" && !finished() && !cancel.cancelled()) {
        changed_.WaitFor(lock, std::chrono::milliseconds(5), finished);
      }
      if (cancel.cancelled()) return absl::CancelledError("cancelled");
      if (!refusal_.ok()) return refusal_;
      return PlannedMemory{100, ""};
    };
    ControllerFixture::SetUp();
    AddDataset("slow");
  }
  void TearDown() override {
    Finish();
    Kill();  // the controller's threads use the members below
  }
  static JobSpec Slow(const std::string& output) {
    JobSpec spec = Spec(output);
    spec.train_dataset = "slow";
    return spec;
  }
  void AwaitBegun(std::size_t count) {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [&] { return begun_.size() >= count; });
  }
  void Finish() {
    base::MutexLock lock(mutex_);
    finish_ = true;
    changed_.NotifyAll();
  }
  void FinishOne(const std::string& output) {
    base::MutexLock lock(mutex_);
    finish_one_ = output;
    changed_.NotifyAll();
  }

  base::Mutex mutex_;
  base::Condition changed_;
  std::vector<std::string> begun_;  // output models, in the order in which their plans began
  bool finish_ = false;
  std::string finish_one_;
  absl::Status refusal_;
};

TEST_F(PlanningTest, SubmitAnswersWhileThePlanIsBlocked) {
  const absl::Time began = absl::Now();
  const auto job = controller_->Submit(Slow("out"), "request");
  const absl::Duration took = absl::Now() - began;
  ASSERT_TRUE(job.ok()) << job.status();
  std::printf("Submit answered in %.3f s with its plan blocked\n", absl::ToDoubleSeconds(took));
  EXPECT_LT(took, absl::Seconds(10)) << "ten times the promised second";
  EXPECT_EQ(job->state, kPlanning);
  EXPECT_EQ(controller_->Submit(Slow("out"), "request")->id, job->id) << "a repeated request";
  AwaitBegun(1);

  // A second thread plans other jobs meanwhile.
  const std::string other = Submit(Spec("other"));
  controller_->Round();
  EXPECT_EQ(State(other), kPreparing);
  EXPECT_EQ(State(job->id), kPlanning);
  EXPECT_EQ(base::Reason(state_->datasets->Delete("slow")), "DATASET_IN_USE")
      << "the planned data must stay for the training";
  Finish();
  AwaitPlan(job->id);
  EXPECT_EQ(Story(job->id), "state:PLANNING state:QUEUED");
  EXPECT_EQ(database_->Get(job->id)->memory_bytes, 100);
}

TEST_F(PlanningTest, BadDataEndsTheJobWithTheErrorOfItsPlan) {
  refusal_ = base::WithReason(absl::InvalidArgumentError("train_dataset: line 7: no token is trained"),
                              "NO_TRAINABLE_TOKENS", {{"field", "train_dataset"}, {"line", "7"}});
  const std::string id = Submit(Spec("out"));
  controller_->Tick();  // FAILED is visible a moment before the name is free again
  const auto check = [&] {
    const auto job = controller_->Get(id);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->state, kFailed);
    EXPECT_TRUE(job->ended.has_value());
    ASSERT_TRUE(job->error.has_value());
    EXPECT_EQ(job->error->code, "INVALID_ARGUMENT");
    EXPECT_EQ(job->error->reason, "NO_TRAINABLE_TOKENS");
    EXPECT_EQ(job->error->message, "train_dataset: line 7: no token is trained");
    EXPECT_EQ(job->error->metadata.at("line"), "7");
  };
  check();
  EXPECT_EQ(Story(id), "state:PLANNING state:FAILED");
  EXPECT_EQ(observer_.ended, std::vector<std::string>({"FAILED"}));
  EXPECT_TRUE(state_->models->CheckFree("out").ok()) << "its name is free again";
  EXPECT_TRUE(state_->datasets->Delete("train").ok()) << "its dataset may be deleted";
  KillAndReopen();
  check();
}

TEST_F(PlanningTest, CancelEndsThePlanAndPauseIsRefused) {
  const std::string id = controller_->Submit(Slow("out"), "")->id;
  AwaitBegun(1);
  EXPECT_EQ(base::Reason(controller_->Pause(id).status()), "ILLEGAL_STATE");
  EXPECT_EQ(base::Reason(controller_->Resume(id).status()), "ILLEGAL_STATE");
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE");
  EXPECT_EQ(controller_->Cancel(id)->state, kCancelled);
  controller_->Tick();  // returns: the blocked plan has ended
  EXPECT_EQ(Story(id), "state:PLANNING state:CANCELLED");
  EXPECT_TRUE(state_->models->CheckFree("out").ok());
  EXPECT_TRUE(state_->datasets->Delete("slow").ok());
  EXPECT_TRUE(observer_.started.empty());
}

TEST_F(PlanningTest, RestartPlansAgain) {
  const std::string id = controller_->Submit(Slow("out"), "request")->id;
  AwaitBegun(1);
  KillAndReopen();
  EXPECT_EQ(State(id), kPlanning) << "neither lost nor ended";
  EXPECT_EQ(base::Reason(controller_->Submit(Spec("out"), "").status()), "NAME_TAKEN");
  AwaitBegun(2);
  controller_->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(State(id), kPlanning) << "a shutdown does not end the job either";
  Finish();
  KillAndReopen();
  AwaitPlan(id);
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED");
  EXPECT_EQ(controller_->Submit(Slow("out"), "request")->id, id);
}

TEST_F(PlanningTest, PlanningJobsCountAsQueued) {
  Kill();
  options_.max_queued = 2;
  Open();
  ASSERT_TRUE(controller_->Submit(Slow("a"), "").ok());
  ASSERT_TRUE(controller_->Submit(Slow("b"), "").ok());
  EXPECT_EQ(base::Reason(controller_->Submit(Slow("c"), "").status()), "QUEUE_FULL");
}

TEST_F(PlanningTest, PrincipalsTakeTurns) {
  const auto submit = [&](const JobSpec& spec, const std::string& owner) {
    const auto job = controller_->Submit(spec, "", {.owner = owner});
    EXPECT_TRUE(job.ok()) << job.status();
  };
  for (const char* output : {"ann1", "ann2", "ann3", "ann4", "ann5", "ann6"}) submit(Slow(output), "ann");
  AwaitBegun(2);  // Ann's jobs take both planning threads.
  submit(Slow("bob1"), "bob");
  FinishOne("ann1");
  AwaitBegun(3);
  base::MutexLock lock(mutex_);
  EXPECT_EQ(begun_[2], "bob1") << "bob does not wait for all of ann's jobs";
}

}  // namespace
}  // namespace nibble::jobs
