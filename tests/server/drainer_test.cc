#include "server/drainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "server/base/mutex.h"

namespace nibble {
namespace {

// A server with one call. Its jobs do not end while jobs_run_ is true.
class DrainerTest : public testing::Test {
 protected:
  DrainSteps Steps() {
    return {.refuse = [this] { Note("refuse"); },
            .stop_jobs =
                [this] {
                  while (jobs_run_) std::this_thread::yield();
                  Note("jobs over");
                },
            .live_calls =
                [this] {
                  ++looks_;
                  return calls_.load();
                },
            .cut_calls =
                [this] {
                  Note("cut");
                  calls_ = 0;
                },
            .end_watches = [this] { Note("end_watches"); }};
  }
  void Note(const std::string& step) {
    base::MutexLock lock(mutex_);
    notes_.push_back(step);
  }
  std::vector<std::string> notes() {
    base::MutexLock lock(mutex_);
    return notes_;
  }
  int Count(const std::string& step) {
    const std::vector<std::string> all = notes();
    return static_cast<int>(std::count(all.begin(), all.end(), step));
  }

  base::FakeClock clock_{absl::UnixEpoch()};
  std::atomic<std::size_t> calls_{1};
  std::atomic<int> looks_{0};
  std::atomic<bool> jobs_run_{false};
  base::Mutex mutex_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(DrainerTest, WaitsForACallToEnd) {
  Drainer drainer(Steps(), clock_);
  drainer.Begin(absl::Hours(1));
  while (looks_ < 3) std::this_thread::yield();
  EXPECT_EQ(Count("end_watches"), 0);
  calls_ = 0;
  drainer.Wait();
  EXPECT_EQ(notes().front(), "refuse");
  EXPECT_EQ(notes().back(), "end_watches");
  EXPECT_EQ(Count("cut"), 0);
  EXPECT_EQ(Count("jobs over"), 1);
}

// Watches must see the end of their jobs.
TEST_F(DrainerTest, WatchesEndAfterTheJobs) {
  jobs_run_ = true;
  Drainer drainer(Steps(), clock_);
  drainer.Begin(absl::ZeroDuration());
  while (Count("cut") == 0) std::this_thread::yield();
  EXPECT_EQ(Count("end_watches"), 0);
  jobs_run_ = false;
  drainer.Wait();
  const std::vector<std::string> all = notes();
  EXPECT_EQ(std::vector<std::string>(all.end() - 2, all.end()), (std::vector<std::string>{"jobs over", "end_watches"}));
}

TEST_F(DrainerTest, DestructorWaitsForTheDrain) {
  jobs_run_ = true;
  std::thread ends([this] {
    while (Count("cut") == 0) std::this_thread::yield();
    jobs_run_ = false;
  });
  {
    Drainer drainer(Steps(), clock_);
    drainer.Begin(absl::ZeroDuration());
  }
  EXPECT_EQ(Count("end_watches"), 1);
  ends.join();
}

TEST_F(DrainerTest, CutsCallsStillLiveAtTheDeadline) {
  Drainer drainer(Steps(), clock_);
  drainer.Begin(absl::Seconds(10));
  while (looks_ < 3) std::this_thread::yield();  // real time passes, but the deadline depends on clock_
  EXPECT_EQ(Count("cut"), 0);
  clock_.Advance(absl::Seconds(11));
  drainer.Wait();
  EXPECT_EQ(Count("cut"), 1);
}

TEST_F(DrainerTest, EarlierDeadlineCounts) {
  Drainer drainer(Steps(), clock_);
  drainer.Begin(absl::Hours(1));
  drainer.Begin(absl::Seconds(5));
  drainer.Begin(absl::Hours(2));
  clock_.Advance(absl::Seconds(6));
  drainer.Wait();
  EXPECT_EQ(Count("cut"), 1);
  EXPECT_EQ(Count("refuse"), 1);
  EXPECT_EQ(Count("jobs over"), 1);
}

TEST_F(DrainerTest, ConcurrentBeginsMakeOneDrain) {
  Drainer drainer(Steps(), clock_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      drainer.Begin(absl::ZeroDuration());
      drainer.Wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Count("refuse"), 1);
  EXPECT_EQ(Count("end_watches"), 1);
}

TEST_F(DrainerTest, WaitWithoutADrainDoesNothing) {
  {
    Drainer drainer(Steps(), clock_);
    drainer.Wait();
  }
  EXPECT_TRUE(notes().empty());
}

}  // namespace
}  // namespace nibble
