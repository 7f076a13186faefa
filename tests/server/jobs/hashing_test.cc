// Checkpoints and outputs are hashed outside the scheduler, so that everything else continues meanwhile
// (docs/faults.md, C6).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/ids.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"
#include "tests/server/store/faulty_files.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using enum JobState;

// A disk on which reading or removing one file blocks until the test releases it. Thread-safe.
class SlowDisk {
 public:
  void Hold(const std::string& path) {
    base::MutexLock lock(mutex_);
    held_ = path;
  }
  void Release() {
    base::MutexLock lock(mutex_);
    held_.clear();
    changed_.NotifyAll();
  }
  void AwaitHeld() {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ > 0; });
  }
  bool held() {
    base::MutexLock lock(mutex_);
    return waiting_ > 0;
  }
  int outputs_read() {
    base::MutexLock lock(mutex_);
    return outputs_read_;
  }
  // Called before each read or removal.
  void Reach(const std::string& path) {
    base::MutexLock lock(mutex_);
    if (path.ends_with("/output/manifest.json")) ++outputs_read_;
    if (held_.empty() || path.find(held_) == std::string::npos) return;
    ++waiting_;
    changed_.NotifyAll();
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_.empty(); });
    --waiting_;
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::string held_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int outputs_read_ ABSL_GUARDED_BY(mutex_) = 0;
};

class HashingTest : public ControllerFixture {
 protected:
  class Hook : public store::AppendsAsAsked {
   public:
    explicit Hook(SlowDisk& disk) : disk_(disk) {}
    template <typename Work>
    auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
      if (operation == "read" || operation == "remove") disk_.Reach(path);
      return work();
    }

   private:
    SlowDisk& disk_;
  };

  void SetUp() override {
    files_ = &hooked_;
    options_.queue.max_running = 2;
    ControllerFixture::SetUp();
  }
  void TearDown() override {
    disk_.Release();  // A failed test must not block the worker.
    Kill();           // The worker reads through hooked_.
    EXPECT_LT(longest_round_, std::chrono::seconds(1)) << "ten times the 100 ms between rounds";
    RecordProperty("longest_round_us", static_cast<int>(longest_round_ / std::chrono::microseconds(1)));
  }

  // Runs rounds until `is_so` is true: the scheduler uses the results of another thread only in a later round.
  void RoundsUntil(const std::function<bool()>& is_so) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_so()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      Round();
      std::this_thread::yield();
    }
  }
  void Round() {
    const auto began = std::chrono::steady_clock::now();
    controller_->Round();
    longest_round_ = std::max<std::chrono::nanoseconds>(longest_round_, std::chrono::steady_clock::now() - began);
  }
  std::string Start(const std::string& output) {
    const std::string id = Submit(Spec(output));
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    EXPECT_EQ(State(id), kRunning);
    return id;
  }
  // Returns the job when its trainer has succeeded and its output is being read.
  std::string StartAndVerify() {
    const std::string id = Start("out");
    Finish(Trainer(id));
    disk_.Hold("/output/manifest.json");
    machine_.Exit(Trainer(id), 0);
    RoundsUntil([this] { return disk_.held(); });
    return id;
  }
  // Returns the job when its trainer was killed, its backoff is over, and its checkpoint is being read.
  std::string StartAndResume() {
    const std::string id = Start("out");
    Checkpoint(Trainer(id), 2);
    controller_->Tick();
    machine_.Kill(Trainer(id));
    controller_->Tick();
    EXPECT_EQ(State(id), kQueued);
    clock_.Advance(absl::Seconds(10));
    disk_.Hold("/step-00000002/manifest.json");
    Round();
    disk_.AwaitHeld();
    EXPECT_EQ(State(id), kQueued);
    return id;
  }
  // Another job is created, started, cancelled and deleted while the disk is slow.
  void RunAnotherJob() {
    const std::string other = Submit(Spec("other"));
    Round();
    EXPECT_EQ(State(other), kPreparing);
    Ready(Trainer(other));
    Round();
    Step(Trainer(other), 1);
    Round();
    EXPECT_EQ(controller_->Get(other)->progress["step"], 1);
    ASSERT_TRUE(controller_->Cancel(other).ok());
    Round();
    EXPECT_THAT(Trainer(other).signals, ElementsAre(Runner::Signal::kTerminate));
    machine_.Exit(Trainer(other), kExitTempFail);
    RoundsUntil([&] { return State(other) == kCancelled; });
    ASSERT_TRUE(controller_->Delete(other).ok());
  }

  SlowDisk disk_;
  std::chrono::nanoseconds longest_round_{0};
  base::HookedFiles<Hook> hooked_{base::RealFileSystem(), disk_};
};

TEST_F(HashingTest, SchedulerContinuesWhileAnOutputIsVerified) {
  const std::string id = StartAndVerify();
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Minutes(5));
    Round();
    EXPECT_EQ(controller_->SinceRound(), absl::ZeroDuration()) << "/livez checks this";
  }
  EXPECT_EQ(State(id), kRunning);
  RunAnotherJob();
  EXPECT_EQ(base::Reason(controller_->Checkpoint(id).status()), "ILLEGAL_STATE") << "the job has no trainer any more";
  disk_.Release();
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_EQ(Story(id), "state:PLANNING state:QUEUED state:PREPARING state:RUNNING model state:SUCCEEDED");
}

TEST_F(HashingTest, CancelDoesNotWaitForTheVerificationOfAnOutput) {
  const std::string id = StartAndVerify();
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(State(id), kCancelling);
  disk_.Release();  // At most one more file is opened, and none is hashed.
  controller_->Tick();
  EXPECT_EQ(State(id), kCancelled);
  EXPECT_FALSE(state_->models->Get("out").ok());
  EXPECT_TRUE(controller_->Delete(id).ok());
}

TEST_F(HashingTest, PauseWhileTheOutputIsVerifiedIsAcceptedAndTheJobSucceeds) {
  const std::string id = StartAndVerify();
  ASSERT_TRUE(controller_->Pause(id).ok());
  EXPECT_EQ(State(id), kPausing);
  disk_.Release();
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
}

// Removal takes time: the files of a half-written 8 B model have up to 20 GB.
TEST_F(HashingTest, SchedulerContinuesWhileUnfinishedFilesAreRemoved) {
  const std::string id = Start("out");
  const std::string unfinished = base::TemporaryName(base::JoinPath(Trainer(id).directory, "output"));
  ASSERT_TRUE(base::RealFileSystem().CreateDirectories(unfinished).ok());
  machine_.Kill(Trainer(id));
  disk_.Hold(unfinished);
  Round();
  disk_.AwaitHeld();
  clock_.Advance(absl::Minutes(5));
  Round();
  EXPECT_EQ(controller_->SinceRound(), absl::ZeroDuration());
  EXPECT_EQ(State(id), kRunning) << "the end of the attempt is recorded only after the removal";
  disk_.Release();
  RoundsUntil([&] { return State(id) != kRunning; });
  EXPECT_EQ(State(id), kQueued);
  EXPECT_FALSE(base::RealFileSystem().Exists(unfinished));
}

TEST_F(HashingTest, RestartVerifiesTheOutputAgain) {
  const std::string id = StartAndVerify();
  disk_.Release();
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_THAT(observer_.models, ElementsAre("out"));
}

TEST_F(HashingTest, OutputIsReadOnceEvenIfRecordingItsEndIsRetried) {
  RefusingDatabase& database = OpenOn<RefusingDatabase>();
  const std::string id = Start("out");
  Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  database.refuses = true;
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(2));
    controller_->Tick();
    EXPECT_EQ(State(id), kRunning);
  }
  EXPECT_EQ(disk_.outputs_read(), 1);
  database.refuses = false;
  clock_.Advance(absl::Seconds(2));
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
}

TEST_F(HashingTest, SchedulerContinuesWhileACheckpointIsRead) {
  const std::string id = StartAndResume();
  clock_.Advance(absl::Minutes(5));
  Round();
  EXPECT_EQ(controller_->SinceRound(), absl::ZeroDuration());
  RunAnotherJob();
  EXPECT_EQ(State(id), kQueued);
  disk_.Release();
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_EQ(Trainer(id).order.resume_step, 2);
}

TEST_F(HashingTest, JobCanLeaveTheQueueWhileItsCheckpointIsRead) {
  const std::string id = StartAndResume();
  ASSERT_TRUE(controller_->Pause(id).ok());
  EXPECT_EQ(State(id), kPaused);
  // Both places for running jobs are free.
  const std::string first = Submit(Spec("first")), second = Submit(Spec("second"));
  Round();
  EXPECT_EQ(State(first), kPreparing);
  EXPECT_EQ(State(second), kPreparing);
  ASSERT_TRUE(controller_->Cancel(id).ok());
  ASSERT_TRUE(controller_->Delete(id).ok());
  disk_.Release();
  controller_->Tick();
  EXPECT_EQ(observer_.started.size(), 3u) << "the deleted job was not started again";
}

TEST_F(HashingTest, JobPausedAndResumedWhileItsCheckpointIsReadStartsOnce) {
  const std::string id = StartAndResume();
  ASSERT_TRUE(controller_->Pause(id).ok());
  ASSERT_TRUE(controller_->Resume(id).ok());
  Round();
  disk_.Release();
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_EQ(controller_->Get(id)->attempt, 2);
  EXPECT_EQ(Trainer(id).order.resume_step, 2);
}

TEST(DiskWorkerTest, WorksInOrderAndStopsEarly) {
  std::vector<int> order;  // used by the worker's thread until it stops
  std::shared_ptr<Deferred<bool>> endless, never;
  {
    DiskWorker worker([] {});
    for (int i = 0; i < 3; ++i) {
      worker.Start<bool>([&order, i](const store::Cancelled&) {
        order.push_back(i);
        return true;
      });
    }
    worker.AwaitIdle();
    EXPECT_THAT(order, ElementsAre(0, 1, 2));
    endless = worker.Start<bool>([](const store::Cancelled& cancelled) {
      while (!cancelled()) std::this_thread::yield();
      return true;
    });
    never = worker.Start<bool>([](const store::Cancelled&) { return true; });
  }
  EXPECT_FALSE(never->done()) << "waiting work is dropped when the worker stops";
  const bool began = endless->done();  // If it had not begun, it was dropped too.
  EXPECT_TRUE(!began || endless->value());
}

}  // namespace
}  // namespace nibble::jobs
