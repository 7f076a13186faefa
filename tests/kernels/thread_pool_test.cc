#include "kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kernels/launch_counter.h"

namespace nibble::kernels {
namespace {

TEST(ThreadPoolTest, EveryIndexIsVisitedOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const std::int64_t n : {0, 1, 2, 31, 32, 33, 1000}) {
      for (const std::int64_t grain : {1, 7, 2000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
        pool.ParallelFor(n, grain, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const auto& v : visits) EXPECT_EQ(v.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, ConcurrentCallsEachCoverTheirRange) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int r = 0; r < 200; ++r) {
        pool.ParallelFor(64, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 64);
}

TEST(LaunchCounterTest, CountsByNameFromManyThreads) {
  LaunchCounter counter;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        counter.Add("rope");
        counter.Add("matmul_int8", 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.Snapshot(), (std::map<std::string, std::uint64_t>{{"matmul_int8", 8000}, {"rope", 4000}}));
  EXPECT_EQ(counter.total(), 12000u);
}

}  // namespace
}  // namespace nibble::kernels
