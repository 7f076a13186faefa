#include "server/http/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nibble::http {
namespace {

using testing::ElementsAre;

class ConnectionTableTest : public testing::Test {
 protected:
  struct Named : Connection {
    Named(ConnectionTableTest& given_test, std::string given_name, const std::string& peer)
        : test(given_test),
          name(std::move(given_name)),
          place(test.table_.Add(*this, boost::asio::ip::make_address(peer))) {}
    void Close() override {
      test.closed_.push_back(name);
      place.Release();
    }
    ConnectionTableTest& test;
    const std::string name;
    ConnectionTable::Place place;
  };
  Named& Add(const std::string& name, const std::string& peer) {
    connections_.push_back(std::make_unique<Named>(*this, name, peer));
    return *connections_.back();
  }

  int freed_ = 0;
  ConnectionTable table_{3, [this] { ++freed_; }};
  std::vector<std::string> closed_;
  std::vector<std::unique_ptr<Named>> connections_;
};

TEST_F(ConnectionTableTest, ClosesTheLongestExchangeFirst) {
  Named& first = Add("first", "10.0.0.1");
  Add("second", "10.0.0.1");
  EXPECT_FALSE(table_.full());
  Add("third", "10.0.0.1");
  EXPECT_TRUE(table_.full());
  first.place.Renew();
  while (table_.CloseOne()) {
  }
  EXPECT_THAT(closed_, ElementsAre("second", "third", "first"));
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_EQ(freed_, 3);
}

TEST_F(ConnectionTableTest, ReportsTheStartOfTheExchangeToClose) {
  const auto before = std::chrono::steady_clock::now();
  Named& first = Add("first", "10.0.0.1");
  const auto between = std::chrono::steady_clock::now();
  Add("second", "10.0.0.1");
  ASSERT_TRUE(table_.ExchangeToCloseBegan().has_value());
  EXPECT_GE(*table_.ExchangeToCloseBegan(), before);
  EXPECT_LE(*table_.ExchangeToCloseBegan(), between);
  first.place.Renew();
  EXPECT_GE(*table_.ExchangeToCloseBegan(), between) << "the second one's exchange is the longest now";
}

TEST_F(ConnectionTableTest, EmptyTableHasNoExchangeToClose) {
  EXPECT_FALSE(table_.ExchangeToCloseBegan().has_value());
  EXPECT_FALSE(table_.CloseOne());
}

TEST_F(ConnectionTableTest, PeerWithTheMostConnectionsLosesOne) {
  Add("probe", "10.0.0.1");
  Add("scrape", "10.0.0.2");
  for (const char* name : {"a", "b", "c"}) Add(name, "10.0.0.3");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table_.CloseOne());
  EXPECT_THAT(closed_, ElementsAre("a", "b", "probe")) << "then all peers have equally many";
}

TEST_F(ConnectionTableTest, SparesAConnectionThatAwaitsItsAnswer) {
  ConnectionTable::Place& scrape = Add("scrape", "10.0.0.1").place;
  Add("silent", "10.0.0.1");
  scrape.AwaitAnswer();
  Add("new", "10.0.0.1");
  EXPECT_TRUE(table_.CloseOne());
  scrape.Renew();  // the answer is being sent
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_THAT(closed_, ElementsAre("silent", "new", "scrape"));
}

TEST_F(ConnectionTableTest, ConnectionsThatAwaitAnswersCannotTakeAllPlaces) {
  Add("first", "10.0.0.1").place.AwaitAnswer();
  Add("second", "10.0.0.1").place.AwaitAnswer();
  Add("probe", "10.0.0.1");
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_THAT(closed_, ElementsAre("first", "probe")) << "only one of three may be spared";
}

TEST_F(ConnectionTableTest, CountsAnIpv6NetworkAndMappedIpv4AsOnePeer) {
  Add("probe", "2001:db8:0:1::1");
  Add("a", "2001:db8:0:2::1");
  Add("b", "2001:db8:0:2:ffff::2");
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_THAT(closed_, ElementsAre("a"));
  Add("c", "10.0.0.1");
  Add("d", "::ffff:10.0.0.1");
  EXPECT_TRUE(table_.CloseOne());
  EXPECT_THAT(closed_, ElementsAre("a", "c"));
}

TEST_F(ConnectionTableTest, PlaceIsReleasedOnce) {
  Named& first = Add("first", "10.0.0.1");
  ConnectionTable::Place moved = std::move(first.place);
  first.place.Release();
  first.place.Renew();
  EXPECT_EQ(table_.size(), 1u);
  moved = ConnectionTable::Place();
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_EQ(freed_, 1);
  EXPECT_FALSE(table_.CloseOne());
}

}  // namespace
}  // namespace nibble::http
