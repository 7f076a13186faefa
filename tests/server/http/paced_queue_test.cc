#include "server/http/paced_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace nibble::http {
namespace {

using testing::ElementsAre;

class PacedQueueTest : public testing::Test {
 protected:
  void Say(const std::string& what) { said_.push_back(what); }

  boost::asio::io_context io_{1};
  PacedQueue queue_{io_};
  std::vector<std::string> said_;
};

TEST_F(PacedQueueTest, RunsOtherHandlersBetweenTwoTasks) {
  for (const char* name : {"first", "second", "third"}) queue_.Add([this, name] { Say(name); });
  boost::asio::post(io_, [this] { Say("probe"); });
  io_.run();
  EXPECT_THAT(said_, ElementsAre("first", "probe", "second", "third"));
}

TEST_F(PacedQueueTest, TaskMayAddAnother) {
  queue_.Add([this] {
    Say("first");
    queue_.Add([this] { Say("second"); });
  });
  io_.run();
  EXPECT_THAT(said_, ElementsAre("first", "second"));
}

TEST_F(PacedQueueTest, ThrowingTaskDoesNotStopTheOthers) {
  queue_.Add([] { throw std::runtime_error("no memory"); });
  queue_.Add([this] { Say("second"); });
  EXPECT_THROW(io_.run(), std::runtime_error);
  io_.run();
  EXPECT_THAT(said_, ElementsAre("second"));
}

}  // namespace
}  // namespace nibble::http
