#include "server/base/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace nibble::base {
namespace {

TEST(WorkerPoolTest, PoolIsIdleWhenNothingIsQueuedAndNothingRuns) {
  WorkerPool workers(2, 0);
  workers.AwaitIdle();
  std::atomic<int> done{0};
  const auto held = std::make_shared<int>(1);
  for (int i = 0; i < 100; ++i) {
    workers.Run([&workers, &done, held] {
      workers.Run([&done, held] { ++done; });
      ++done;
    });
  }
  workers.AwaitIdle();
  EXPECT_EQ(done, 200);
  EXPECT_EQ(held.use_count(), 1) << "finished tasks hold nothing";
}

// C4 (docs/faults.md)
TEST(WorkerPoolTest, PrincipalsTakeTurns) {
  std::string order;  // of the tasks of the only worker
  std::promise<void> queued;
  WorkerPool workers(1, 8);
  workers.Run([&] { queued.get_future().wait(); });
  for (const char* principal : {"a", "a", "a", "b", "", "b"}) {
    EXPECT_TRUE(workers.TryRun([&order, principal] { order += *principal == 0 ? "-" : principal; }, principal));
  }
  queued.set_value();
  workers.AwaitIdle();
  EXPECT_EQ(order, "ab-aba");
}

// A task may take long, and may not react to a cancel.
TEST(WorkerPoolTest, OnePrincipalDoesNotTakeAllThreads) {
  std::promise<void> go, done;
  const std::shared_future<void> going = go.get_future().share();
  std::atomic<int> begun{0};
  WorkerPool workers(3, 16);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(workers.TryRun(
        [&begun, going] {
          ++begun;
          going.wait();
        },
        "a"));
  }
  EXPECT_TRUE(workers.TryRun([&done] { done.set_value(); }, "b"));
  done.get_future().wait();
  EXPECT_LE(begun, workers.max_running_each());
  go.set_value();
  workers.AwaitIdle();
  EXPECT_EQ(begun, 5);
}

// C4 (docs/faults.md): every message of an upload is a task, and there are many uploads.
TEST(WorkerPoolTest, TasksOfAdmittedWorkTakeNoPlaceFromNewWork) {
  std::promise<void> queued;
  std::atomic<int> done{0};
  WorkerPool workers(1, 8);
  workers.Run([&] { queued.get_future().wait(); }, "a");
  for (int i = 0; i < 100; ++i) workers.Run([&done] { ++done; }, "a");
  int before_b = -1;
  EXPECT_TRUE(workers.TryRun([&] { before_b = done; }, "b"));
  queued.set_value();
  workers.AwaitIdle();
  EXPECT_EQ(done, 100);
  EXPECT_GE(before_b, 0);
  EXPECT_LE(before_b, 1) << "principals take turns";
}

TEST(WorkerPoolTest, HalfOfTheQueueIsLeftToOthers) {
  std::promise<void> queued;
  std::atomic<int> done{0};
  WorkerPool workers(1, 8);
  workers.Run([&] { queued.get_future().wait(); });
  const auto try_run = [&](const char* principal) { return workers.TryRun([&done] { ++done; }, principal); };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(try_run("a"));
  EXPECT_FALSE(try_run("a"));
  EXPECT_EQ(workers.num_waiting("a"), workers.max_waiting_each());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(try_run("")) << "without tokens there are no principals";
  EXPECT_FALSE(try_run("b")) << "all places are taken";
  queued.set_value();
  workers.AwaitIdle();
  EXPECT_EQ(done, 8);
}

TEST(PumpTest, RunsOnceMoreWhenWokenDuringARunAndNeverConcurrently) {
  std::atomic<int> runs{0}, inside{0};
  std::atomic<bool> overlapped{false};
  std::promise<void> begun, woken;
  WorkerPool workers(4, 100);
  auto pump = std::make_shared<Pump>(workers, [&] {
    if (++inside > 1) overlapped = true;
    if (++runs == 1) {
      begun.set_value();
      woken.get_future().wait();
    }
    --inside;
  });
  const auto wake_from_four_threads = [&pump] {
    std::vector<std::thread> wakers;
    for (int t = 0; t < 4; ++t) {
      wakers.emplace_back([&pump] {
        for (int i = 0; i < 1000; ++i) pump->Wake();
      });
    }
    for (auto& waker : wakers) waker.join();
  };
  pump->Wake();
  begun.get_future().wait();
  wake_from_four_threads();  // all during the first run
  woken.set_value();
  workers.AwaitIdle();
  EXPECT_EQ(runs, 2);
  wake_from_four_threads();  // during runs and between them
  workers.AwaitIdle();
  EXPECT_GT(runs, 2);
  EXPECT_FALSE(overlapped);
}

TEST(PumpTest, RunsAgainAfterTheTasksThatWait) {
  std::vector<std::string> order;  // of the tasks of the only worker
  {
    WorkerPool workers(1, 100);
    std::shared_ptr<Pump> pump = std::make_shared<Pump>(workers, [&] {
      order.push_back("pump");
      if (order.size() > 1) return;
      workers.Run([&] { order.push_back("call"); });
      pump->Wake();
    });
    pump->Wake();
    workers.AwaitIdle();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"pump", "call", "pump"}));
}

}  // namespace
}  // namespace nibble::base
