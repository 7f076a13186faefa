#include "server/base/memory_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace nibble::base {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

TEST(MemoryBudgetTest, LastHandleReturnsItsBytes) {
  const auto budget = MemoryBudget::Make(100);
  auto first = budget->TryTake(60);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(budget->TryTake(41), nullptr);
  const auto second = budget->TryTake(40);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(budget->left(), 0);
  auto copy = first;
  first.reset();
  EXPECT_EQ(budget->left(), 0);
  copy.reset();
  EXPECT_EQ(budget->left(), 60);
  EXPECT_NE(budget->TryTake(0), nullptr);
}

TEST(MemoryBudgetTest, EverythingFitsWithoutALimit) {
  const auto budget = MemoryBudget::Make(0);
  const auto all = budget->TryTake(kAll / 2);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(budget->left(), kAll);
}

TEST(MemoryBudgetTest, LimitIsTheSmallestOfAPartAndTheWhole) {
  const auto machine = MemoryBudget::Make(100);
  const auto taken = machine->TryTake(90);
  EXPECT_EQ(MemoryBudget::Make(70, machine)->limit(), 70);
  EXPECT_EQ(MemoryBudget::Make(170, machine)->limit(), 100);
  EXPECT_EQ(MemoryBudget::Make(0, machine)->limit(), 100);
  EXPECT_EQ(MemoryBudget::Make(0)->limit(), kAll);
}

TEST(MemoryBudgetTest, PartIsBoundedByItsOwnLimitAndByTheWhole) {
  const auto machine = MemoryBudget::Make(100);
  const auto models = MemoryBudget::Make(70, machine);
  EXPECT_EQ(models->left(), 70);
  EXPECT_EQ(models->TryTake(71), nullptr);
  EXPECT_EQ(machine->left(), 100) << "a refusal takes nothing";
  auto trainer = machine->TryTake(50);
  EXPECT_EQ(models->left(), 50);
  EXPECT_EQ(models->TryTake(51), nullptr);
  auto model = models->TryTake(50);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(machine->left(), 0);
  trainer.reset();
  EXPECT_EQ(models->left(), 20);
  model.reset();
  EXPECT_EQ(machine->left(), 100);
}

TEST(MemoryBudgetTest, TakeAnywayExceedsTheLimit) {
  const auto machine = MemoryBudget::Make(100);
  const auto part = MemoryBudget::Make(80, machine);
  auto adopted = part->TakeAnyway(150);
  EXPECT_EQ(part->left(), 0);
  EXPECT_EQ(machine->left(), 0);
  EXPECT_EQ(part->TryTake(1), nullptr);
  adopted.reset();
  EXPECT_EQ(part->left(), 80);
}

TEST(MemoryBudgetTest, HandleKeepsItsBudgetAlive) {
  auto machine = MemoryBudget::Make(100);
  auto handle = MemoryBudget::Make(80, machine)->TryTake(10);
  EXPECT_EQ(machine->left(), 90);
  handle.reset();
  EXPECT_EQ(machine->left(), 100);
}

TEST(MemoryBudgetTest, ConcurrentTakesFillTheLimitExactly) {
  const auto machine = MemoryBudget::Make(10);
  const auto part = MemoryBudget::Make(7, machine);
  std::atomic<int> got = 0;
  std::vector<std::shared_ptr<const void>> handles(16);
  std::vector<std::thread> threads;
  for (auto& handle : handles) {
    threads.emplace_back([&] {
      handle = part->TryTake(1);
      got += handle != nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got.load(), 7);
  EXPECT_EQ(part->left(), 7 - got);
  EXPECT_EQ(machine->left(), 10 - got);
}

}  // namespace
}  // namespace nibble::base
