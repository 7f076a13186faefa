// Work with copies of models runs one at a time, inside the shared memory (docs/faults.md, C5).
#include "server/registry/work_admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"

namespace nibble::registry {
namespace {

WorkMemory Bytes(std::int64_t bytes) { return {.weights = bytes}; }

class WorkAdmissionTest : public ::testing::Test {
 protected:
  absl::StatusOr<WorkAdmission::Turn> Take(std::int64_t bytes) { return admission_.Await("test", Bytes(bytes), {}); }
  void AwaitWaiting(std::size_t number) {
    while (admission_.num_waiting() != number) std::this_thread::yield();
  }

  const std::shared_ptr<base::MemoryBudget> budget_ = base::MemoryBudget::Make(100);
  WorkAdmission admission_{budget_};
};

TEST_F(WorkAdmissionTest, C5AdmitsOneAtATimeInTheOrderOfArrival) {
  auto first = Take(80);
  ASSERT_TRUE(first.ok()) << first.status();
  std::atomic<int> running{0}, most{0}, notified{0};
  std::vector<int> order;  // written only by the admitted thread
  std::vector<std::future<absl::Status>> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(std::async(std::launch::async, [&, i]() -> absl::Status {
      const auto turn = admission_.Await("test", Bytes(80), {}, [&notified] { ++notified; });
      if (!turn.ok()) return turn.status();
      most = std::max(most.load(), ++running);
      order.push_back(i);
      --running;
      return absl::OkStatus();
    }));
    AwaitWaiting(static_cast<std::size_t>(i) + 1);
  }
  EXPECT_EQ(budget_->left(), 20);
  first = absl::UnknownError("gone");  // ends the first turn
  for (auto& other : others) EXPECT_TRUE(other.get().ok());
  EXPECT_EQ(most, 1);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(notified, 4) << "each was notified once that it waits";
  EXPECT_EQ(budget_->left(), 100);
  EXPECT_TRUE(admission_.Await("test", Bytes(1), {}, [&notified] { ++notified; }).ok());
  EXPECT_EQ(notified, 4) << "nothing to wait for";
}

TEST_F(WorkAdmissionTest, C5WorkWhoseCallerHasGoneLeavesTheQueue) {
  auto first = Take(80);
  ASSERT_TRUE(first.ok());
  std::atomic<bool> gone{false};
  auto second = std::async(
      std::launch::async, [&] { return admission_.Await("test", Bytes(1), [&gone] { return gone.load(); }).status(); });
  AwaitWaiting(1);
  auto third = std::async(std::launch::async, [&] { return Take(90).status(); });
  AwaitWaiting(2);
  gone = true;
  EXPECT_TRUE(absl::IsCancelled(second.get())) << "while the first one still runs";
  AwaitWaiting(1);
  first = absl::UnknownError("gone");  // ends the first turn
  EXPECT_TRUE(third.get().ok());
}

TEST_F(WorkAdmissionTest, C5WorkThatCanNeverFitIsRefusedAtOnce) {
  const auto first = Take(80);
  ASSERT_TRUE(first.ok());
  const absl::Status refused =
      admission_.Await("verify of model m", {.weights = 90, .kv_cache = 5, .buffers = 4, .data = 2}, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY");
  auto metadata = base::ReasonMetadata(refused);
  EXPECT_EQ(metadata["need"], "101");
  EXPECT_EQ(metadata["have"], "100");
  EXPECT_EQ(metadata["plan"], "weights 90, kv_cache 5, buffers 4, data 2");
  EXPECT_NE(refused.message().find("verify of model m"), absl::string_view::npos) << refused;
  EXPECT_EQ((WorkMemory{.weights = std::numeric_limits<std::int64_t>::max(), .data = 1}).total(),
            std::numeric_limits<std::int64_t>::max());
}

TEST_F(WorkAdmissionTest, C5WorkDoesNotWaitForModelsInMemory) {
  auto loaded = budget_->TryTake(50);
  const absl::Status refused = Take(60).status();
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(base::ReasonMetadata(refused)["have"], "50");
  EXPECT_TRUE(Take(50).ok()) << "the one that was refused left the queue";
  loaded.reset();
  EXPECT_TRUE(Take(60).ok());
}

}  // namespace
}  // namespace nibble::registry
