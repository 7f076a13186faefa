#include "server/http/client_budget.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace nibble::http {
namespace {

class FakeConnection final : public Connection {
 public:
  FakeConnection(ClientBudget& budget, std::string principal)
      : share_(budget, *this), principal_(std::move(principal)) {}
  void Close() override { closed_ = true; }
  bool Hold(std::size_t amount) { return share_.Hold(principal_, amount); }
  // Holds the amount and waits for the client.
  bool Await(std::size_t amount) {
    share_.AwaitClient();
    return Hold(amount);
  }
  ClientBudget::Share& share() { return share_; }
  bool closed() const { return closed_; }

 private:
  ClientBudget::Share share_;
  const std::string principal_;
  bool closed_ = false;
};

TEST(ClientBudgetTest, OnePrincipalHoldsHalfAndTheUnnamedOneAll) {
  ClientBudget budget(10);
  FakeConnection first(budget, "a"), second(budget, "a"), other(budget, "b");
  EXPECT_TRUE(first.Hold(3));
  EXPECT_FALSE(second.Hold(3));
  EXPECT_TRUE(second.Hold(2));
  EXPECT_TRUE(other.Hold(5));
  ClientBudget of_all(10);
  FakeConnection most(of_all, ""), rest(of_all, "");
  EXPECT_TRUE(most.Hold(9));
  EXPECT_FALSE(rest.Hold(2));
  EXPECT_TRUE(rest.Hold(1));
}

TEST(ClientBudgetTest, OnlyRequestOfAPrincipalAlwaysFits) {
  ClientBudget budget(10);
  FakeConnection large(budget, "a"), second(budget, "a"), other(budget, "b");
  EXPECT_TRUE(large.Hold(8));
  EXPECT_TRUE(large.Hold(20));
  EXPECT_TRUE(other.Hold(3));
  EXPECT_FALSE(second.Hold(1));
}

TEST(ClientBudgetTest, ReleasedAndReducedAmountsAreFree) {
  ClientBudget budget(10);
  FakeConnection first(budget, ""), second(budget, "");
  EXPECT_TRUE(first.Hold(10));
  EXPECT_FALSE(second.Hold(1));
  EXPECT_TRUE(first.Hold(4));
  EXPECT_TRUE(second.Hold(6));
  second.share().Release();
  EXPECT_TRUE(first.Hold(10));
}

TEST(ClientBudgetTest, ClosesTheConnectionThatHoldsMostForLongest) {
  ClientBudget budget(10);
  FakeConnection none(budget, ""), first(budget, ""), second(budget, ""), next(budget, "");
  EXPECT_TRUE(none.Await(0));
  EXPECT_TRUE(first.Await(4));
  EXPECT_TRUE(second.Await(4));
  EXPECT_TRUE(next.Await(3));
  EXPECT_TRUE(first.closed());
  EXPECT_FALSE(second.closed() || none.closed() || next.closed());
  EXPECT_TRUE(next.Hold(7)) << "second is closed";
  EXPECT_TRUE(second.closed());
  EXPECT_FALSE(next.closed() || none.closed());
}

TEST(ClientBudgetTest, ClosesOnlyConnectionsOfThePrincipalThatHoldsMost) {
  ClientBudget budget(12);
  FakeConnection slow(budget, "a"), first(budget, "b"), second(budget, "b"), next(budget, "c");
  EXPECT_TRUE(slow.Await(5));
  EXPECT_TRUE(first.Await(3));
  EXPECT_TRUE(second.Await(3));
  EXPECT_TRUE(next.Hold(2));
  EXPECT_TRUE(first.closed());
  EXPECT_FALSE(slow.closed() || second.closed());
}

TEST(ClientBudgetTest, PrincipalAboveItsHalfClosesItsOwn) {
  ClientBudget budget(12);
  FakeConnection other(budget, "a"), first(budget, "b"), second(budget, "b");
  EXPECT_TRUE(other.Await(1));
  EXPECT_TRUE(first.Await(4));
  EXPECT_TRUE(second.Await(3));
  EXPECT_TRUE(first.closed());
  EXPECT_FALSE(other.closed());
}

TEST(ClientBudgetTest, ClosesNoConnectionThatWaitsForTheServer) {
  ClientBudget budget(10);
  FakeConnection working(budget, ""), next(budget, "");
  EXPECT_TRUE(working.Await(10));
  working.share().EndWait();
  EXPECT_FALSE(next.Hold(1));
  EXPECT_FALSE(working.closed());
}

TEST(ClientBudgetTest, PatienceSparesAConnection) {
  ClientBudget budget(1, absl::Hours(1));
  FakeConnection first(budget, ""), second(budget, "");
  EXPECT_TRUE(first.Await(1));
  EXPECT_FALSE(second.Await(1));
  EXPECT_FALSE(first.closed());
}

}  // namespace
}  // namespace nibble::http
