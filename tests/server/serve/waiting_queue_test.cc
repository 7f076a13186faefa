// C4 (docs/faults.md): the order in which requests begin.
#include "server/serve/waiting_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/base/clock.h"

namespace nibble::serve {
namespace {

using testing::ElementsAre;

class WaitingQueueTest : public testing::Test {
 protected:
  // Adds a request that arrives now.
  void Push(std::uint64_t id, const std::string& principal, int priority = 0) {
    queue_.Push({.id = id, .principal = principal, .priority = priority, .came = clock_.Monotonic()});
  }
  // Returns the id of the request that begins; 0 if none may.
  std::uint64_t Begin(const WaitingQueue::May& may = [](const WaitingEntry&) { return true; }) {
    const WaitingEntry* next = queue_.Next(clock_.Monotonic(), may);
    if (next == nullptr) return 0;
    const std::uint64_t id = next->id;
    queue_.Begin(id, clock_.Monotonic());
    return id;
  }
  std::vector<std::uint64_t> BeginAll() {
    std::vector<std::uint64_t> order;
    while (queue_.size() > 0) order.push_back(Begin());
    return order;
  }

  base::FakeClock clock_{absl::UnixEpoch()};
  WaitingQueue queue_;
};

TEST_F(WaitingQueueTest, OnePrincipalIsServedInTheOrderOfArrival) {
  for (std::uint64_t id = 1; id <= 4; ++id) Push(id, "a");
  EXPECT_THAT(BeginAll(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(Begin(), 0u);
}

TEST_F(WaitingQueueTest, PrincipalsTakeTurnsWhateverTheirNumberOfRequests) {
  for (std::uint64_t id = 1; id <= 5; ++id) Push(id, "flood");
  Push(6, "b");
  Push(7, "b");
  Push(8, "c");
  EXPECT_THAT(BeginAll(), ElementsAre(1, 6, 8, 2, 7, 3, 4, 5));
}

TEST_F(WaitingQueueTest, LaterPrincipalJoinsAtTheEndOfTheRound) {
  Push(1, "a");
  Push(2, "a");
  Push(3, "b");
  Push(4, "b");
  EXPECT_EQ(Begin(), 1u);
  Push(5, "c");
  EXPECT_THAT(BeginAll(), ElementsAre(3, 2, 5, 4));
}

TEST_F(WaitingQueueTest, HigherPrioritiesBeginFirst) {
  Push(1, "a", 0);
  Push(2, "a", -5);
  Push(3, "b", 7);
  Push(4, "a", 7);
  EXPECT_THAT(BeginAll(), ElementsAre(3, 4, 1, 2));
}

// Three principals send requests of priority 100 without end; one request of priority 0 begins every ten seconds.
TEST_F(WaitingQueueTest, LowerPriorityIsServedEventually) {
  Push(1, "patient", 0);
  Push(2, "patient", 0);
  std::vector<double> began;
  for (std::uint64_t id = 10; id < 310; ++id) {
    Push(id, "flood" + std::to_string(id % 3), 100);
    if (Begin() < 10) began.push_back(absl::ToDoubleSeconds(clock_.Monotonic()));
    clock_.Advance(absl::Milliseconds(100));
  }
  ASSERT_EQ(began.size(), 2u);
  EXPECT_NEAR(began[0], 10, 0.5);
  EXPECT_NEAR(began[1], 20, 1);
}

TEST_F(WaitingQueueTest, AgeingOfALongQueueDoesNotDelayHigherPriorities) {
  for (std::uint64_t id = 1; id <= 100; ++id) Push(id, "a", 0);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(Begin(), 1u);
  Push(200, "b", 1);
  EXPECT_EQ(Begin(), 200u) << "a request that begins resets the age of its priority";
}

TEST_F(WaitingQueueTest, NothingOvertakesTheNextRequest) {
  Push(1, "large");
  Push(2, "small");
  for (int i = 0; i < 10; ++i) {
    const WaitingEntry* next = queue_.Next(clock_.Monotonic(), [](const WaitingEntry&) { return true; });
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->id, 1u) << "request 1 waits for room, and the others wait for request 1";
    Push(10 + static_cast<std::uint64_t>(i), "newcomer" + std::to_string(i));
    clock_.Advance(absl::Milliseconds(50));
  }
}

TEST_F(WaitingQueueTest, PrincipalAtItsLimitsDoesNotHoldUpOthers) {
  Push(1, "bounded", 5);
  Push(2, "bounded", 0);
  Push(3, "free", 0);
  const auto may = [](const WaitingEntry& entry) { return entry.principal != "bounded"; };
  EXPECT_EQ(Begin(may), 3u);
  EXPECT_EQ(Begin(may), 0u);
  EXPECT_THAT(BeginAll(), ElementsAre(1, 2));
}

TEST_F(WaitingQueueTest, RemovalKeepsTheTurn) {
  Push(1, "a");
  Push(2, "a");
  Push(3, "b");
  queue_.Remove(1);
  EXPECT_THAT(BeginAll(), ElementsAre(2, 3));
  Push(4, "a");
  queue_.Remove(4);
  EXPECT_EQ(queue_.size(), 0);
}

TEST_F(WaitingQueueTest, CountsRequestsBeforeANewOne) {
  for (std::uint64_t id = 1; id <= 50; ++id) Push(id, "flood");
  Push(51, "b");
  Push(52, "c", 3);
  Push(53, "c", -3);
  EXPECT_EQ(queue_.NumOf("flood"), 50);
  EXPECT_EQ(queue_.NumOf("c"), 2);
  EXPECT_EQ(queue_.NumBefore("d", 0), 3) << "one request of flood, one of b, and the one of higher priority";
  EXPECT_EQ(queue_.NumBefore("b", 0), 4) << "two requests of flood, one of b itself, and the one of higher priority";
  EXPECT_EQ(queue_.NumBefore("flood", 0), 52);
  EXPECT_EQ(queue_.NumBefore("d", 3), 1);
  EXPECT_EQ(queue_.NumBefore("d", 4), 0);
}

}  // namespace
}  // namespace nibble::serve
