#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::ElementsAreArray;
using Write = std::function<bool(const v1::JobEvent&)>;

v1::JobEvent Step(std::int64_t sequence) {
  v1::JobEvent event;
  event.set_sequence(sequence);
  event.mutable_step()->set_step(sequence);
  return event;
}

v1::JobEvent End(std::int64_t sequence) {
  v1::JobEvent event;
  event.set_sequence(sequence);
  event.mutable_state()->set_to(v1::JOB_STATE_SUCCEEDED);
  return event;
}

v1::JobEvent Snapshot(v1::JobState state, std::int64_t last) {
  v1::JobEvent event;
  event.mutable_snapshot()->mutable_job()->set_state(state);
  event.mutable_snapshot()->set_last_sequence(last);
  return event;
}

grpc::Status Lost() { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"); }

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() {
    v1::Job job;
    job.set_name("job-1");
    job.set_state(v1::JOB_STATE_SUCCEEDED);
    server_.get_job.Answers(job);
  }
  absl::StatusOr<v1::Job> Watch(std::int64_t after = 0, const ClientOptions& options = FastOptions()) {
    Client client(server_.Channel(), options);
    return client.WatchJob("job-1", after, [&](const v1::JobEvent& event) {
      seen_.push_back(event.sequence());
      return absl::OkStatus();
    });
  }
  static std::vector<std::int64_t> Range(std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> range;
    for (std::int64_t i = from; i <= to; ++i) range.push_back(i);
    return range;
  }

  FakeServer server_;
  std::vector<std::int64_t> seen_;
};

TEST_F(WatchTest, DeliversEveryEventAndEndsWithTheJob) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 3));
    for (int i = 1; i <= 9; ++i) write(Step(i));
    write(End(10));
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 10)));
}

TEST_F(WatchTest, ResumesAfterTheLastEventAndDropsDuplicates) {
  server_.watch_job.answer = [](const v1::WatchJobRequest& request, const Write& write) {
    const std::int64_t after = request.after_sequence();
    write(Snapshot(v1::JOB_STATE_RUNNING, 10));
    // This server repeats the last event.
    for (std::int64_t i = std::max<std::int64_t>(after, 1); i <= 9 && i < after + 4; ++i) write(Step(i));
    if (after < 9) return Lost();
    write(End(10));
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 10)));
  std::vector<std::int64_t> resumed_after;
  for (const auto& request : server_.watch_job.asked) resumed_after.push_back(request.after_sequence());
  EXPECT_THAT(resumed_after, ElementsAreArray({0, 3, 6, 9}));
}

// A server that drains cuts off its calls: gRPC ends them with CANCELLED.
TEST_F(WatchTest, CallsThatTheServerCutsOffDoNotEndTheWatch) {
  server_.watch_job.answer = [](const v1::WatchJobRequest& request, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 2));
    if (request.after_sequence() == 0) {
      write(Step(1));
      return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED");
    }
    write(End(2));
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(seen_, ElementsAreArray({1, 2}));
}

TEST_F(WatchTest, FillsAGapFromTheLog) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 8));
    write(Step(1));
    write(Step(6));
    write(End(8));
    return grpc::Status::OK;
  };
  server_.list_job_events.answer = [](const v1::ListJobEventsRequest& request, v1::ListJobEventsResponse* page) {
    for (std::int64_t i = 1; i <= 2; ++i) *page->add_events() = Step(request.after_sequence() + i);  // small pages
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 8)));
}

// The watch also calls ListJobEvents and GetJob. Both give up after a few attempts on a lost connection; the watch then
// reconnects and calls them again.
TEST_F(WatchTest, LostConnectionInAnotherCallDoesNotEndTheWatch) {
  const int lost_calls = 2 * FastOptions().attempts + 1;
  server_.watch_job.answer = [](const v1::WatchJobRequest& request, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 8));
    if (request.after_sequence() < 1) write(Step(1));
    if (request.after_sequence() < 6) write(Step(6));
    if (request.after_sequence() < 8) write(End(8));
    return grpc::Status::OK;
  };
  std::atomic<int> list_calls = 0, get_calls = 0;
  server_.list_job_events.answer = [&](const v1::ListJobEventsRequest& request, v1::ListJobEventsResponse* page) {
    if (++list_calls <= lost_calls) return Lost();
    for (std::int64_t i = 1; i <= 2; ++i) *page->add_events() = Step(request.after_sequence() + i);
    return grpc::Status::OK;
  };
  server_.get_job.answer = [&](const v1::GetJobRequest&, v1::Job* job) {
    if (++get_calls <= lost_calls) return Lost();
    job->set_state(v1::JOB_STATE_SUCCEEDED);
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 8)));
  EXPECT_GT(list_calls, lost_calls);
  EXPECT_EQ(get_calls, lost_calls + 1);
}

TEST_F(WatchTest, WatchEndsIfAnotherCallAlwaysFails) {
  ClientOptions options = FastOptions();
  options.reconnect_for = absl::Milliseconds(300);
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 8));
    write(Step(6));
    return grpc::Status::OK;
  };
  server_.list_job_events.Fails(Lost());
  EXPECT_TRUE(absl::IsUnavailable(Watch(1, options).status()));
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_SUCCEEDED, 1));
    return grpc::Status::OK;
  };
  server_.get_job.answer = [](const v1::GetJobRequest&, v1::Job*) { return Lost(); };
  EXPECT_TRUE(absl::IsUnavailable(Watch(1, options).status()));
}

TEST_F(WatchTest, RemovedStepsAreSkippedWithOneCall) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_SUCCEEDED, 12));
    for (const int i : {1, 6, 9}) write(Step(i));
    write(End(12));
    return grpc::Status::OK;
  };
  std::atomic<int> calls = 0;
  server_.list_job_events.answer = [&](const v1::ListJobEventsRequest& request, v1::ListJobEventsResponse* page) {
    ++calls;
    for (const int i : {1, 6, 9, 12}) {
      if (i > request.after_sequence()) *page->add_events() = Step(i);
    }
    return grpc::Status::OK;
  };
  const auto job = Watch();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(seen_, ElementsAreArray({1, 6, 9, 12}));
  EXPECT_EQ(calls, 1);
}

TEST_F(WatchTest, ReportsAGapThatTheLogCannotFill) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Step(1));
    write(Step(6));
    return grpc::Status::OK;
  };
  server_.list_job_events.Answers({});
  const auto job = Watch();
  EXPECT_EQ(job.status().code(), absl::StatusCode::kDataLoss) << job.status();
  EXPECT_THAT(std::string(job.status().message()), ::testing::HasSubstr("ends before event 2"));
}

TEST_F(WatchTest, WatchOfAFinishedJobEndsAtOnce) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_SUCCEEDED, 10));
    return grpc::Status::OK;
  };
  const auto job = Watch(10);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(seen_.empty());
  EXPECT_EQ(server_.watch_job.asked.size(), 1u);
}

TEST_F(WatchTest, ReconnectsWhenAStreamEndsBeforeTheJob) {
  server_.watch_job.answer = [](const v1::WatchJobRequest& request, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 2));
    write(request.after_sequence() == 0 ? Step(1) : End(2));
    return grpc::Status::OK;
  };
  EXPECT_TRUE(Watch().ok());
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 2)));
}

TEST_F(WatchTest, GivesUpWhenStreamsKeepEndingWithoutEvents) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 2));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kDataLoss);
}

// If the server was never reached, for example at a wrong address, a watch fails as fast as any other command.
TEST_F(WatchTest, GivesUpOnAnUnreachableServerAfterTheAttempts) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write&) { return Lost(); };
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.watch_job.asked.size(), static_cast<std::size_t>(FastOptions().attempts));
}

// After a first message, the watch reconnects for longer (ClientOptions::reconnect_for).
TEST_F(WatchTest, ReportsALostConnectionOnceAndContinues) {
  const std::size_t lost_calls = 2 * static_cast<std::size_t>(FastOptions().attempts);
  server_.watch_job.answer = [&](const v1::WatchJobRequest& request, const Write& write) {
    if (request.after_sequence() == 0) {
      write(Snapshot(v1::JOB_STATE_RUNNING, 2));
      write(Step(1));
      return Lost();
    }
    if (server_.watch_job.asked.size() <= lost_calls) return Lost();
    write(End(2));
    return grpc::Status::OK;
  };
  ClientOptions options = FastOptions();
  std::vector<std::string> reasons;
  options.on_lost = [&](const absl::Status& why) { reasons.emplace_back(why.message()); };
  Client client(server_.Channel(), options);
  const auto job = client.WatchJob("job-1", 0, [](const v1::JobEvent&) { return absl::OkStatus(); });
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(reasons, ElementsAreArray({"connection reset"}));
}

TEST_F(WatchTest, ReturnsErrorsOtherThanALostConnection) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write&) {
    return Error(grpc::StatusCode::NOT_FOUND, "no job job-1", "JOB");
  };
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(server_.watch_job.asked.size(), 1u);
}

TEST_F(WatchTest, RejectsAnEventWithoutASequence) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    write(Step(0));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(WatchTest, ErrorOfTheCallbackEndsTheWatch) {
  server_.watch_job.answer = [](const v1::WatchJobRequest&, const Write& write) {
    for (int i = 1; write(Step(i)) && i < 1000; ++i) {
    }
    return grpc::Status::OK;
  };
  Client client(server_.Channel(), FastOptions());
  int seen = 0;
  const auto job = client.WatchJob(
      "job-1", 0, [&](const v1::JobEvent&) { return ++seen == 3 ? absl::CancelledError("enough") : absl::OkStatus(); });
  EXPECT_EQ(job.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(seen, 3);
}

// Real transport: the server stops in the middle of a stream and restarts.
TEST_F(WatchTest, SurvivesARestartOfTheServer) {
  const std::string address = "unix:" + TemporaryFolder() + "/socket";
  std::atomic<bool> sent_half{false};  // then the server restarts
  server_.watch_job.answer = [&](const v1::WatchJobRequest& request, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 6));
    for (std::int64_t i = request.after_sequence() + 1; i <= 3; ++i) write(Step(i));
    if (request.after_sequence() < 3) {
      sent_half = true;
      sent_half.notify_all();
      while (write(Snapshot(v1::JOB_STATE_RUNNING, 6))) std::this_thread::yield();  // until the server stops
      return Lost();
    }
    for (std::int64_t i = request.after_sequence() + 1; i <= 5; ++i) write(Step(i));
    write(End(6));
    return grpc::Status::OK;
  };
  server_.Listen(address);
  std::thread restart([&] {
    sent_half.wait(false);
    server_.Listen(address);
  });
  Client client = Client::Connect(address, FastOptions());
  const auto job = client.WatchJob("job-1", 0, [&](const v1::JobEvent& event) {
    seen_.push_back(event.sequence());
    return absl::OkStatus();
  });
  restart.join();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(seen_, ElementsAreArray(Range(1, 6)));
}

// With the program's own waits: a server that is away for a second is found within two more.
TEST_F(WatchTest, EventsContinueWithinTwoSecondsAfterAShortOutage) {
  const std::string address = "unix:" + TemporaryFolder() + "/socket";
  std::atomic<bool> began{false};
  std::atomic<std::int64_t> back_us{0}, continued_us{0};
  server_.watch_job.answer = [&](const v1::WatchJobRequest& request, const Write& write) {
    write(Snapshot(v1::JOB_STATE_RUNNING, 2));
    if (request.after_sequence() == 0) {
      write(Step(1));
      began = true;
      began.notify_all();
      while (write(Snapshot(v1::JOB_STATE_RUNNING, 2))) std::this_thread::yield();  // until the server stops
      return Lost();
    }
    continued_us = absl::ToUnixMicros(absl::Now());
    write(End(2));
    return grpc::Status::OK;
  };
  server_.Listen(address);
  std::thread outage([&] {
    began.wait(false);
    server_.Stop();
    absl::SleepFor(absl::Seconds(1));
    server_.Listen(address);
    back_us = absl::ToUnixMicros(absl::Now());
  });
  Client client = Client::Connect(address, ClientOptions());
  const auto job = client.WatchJob("job-1", 0, [](const v1::JobEvent&) { return absl::OkStatus(); });
  outage.join();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_GT(continued_us, 0);
  EXPECT_LT(continued_us - back_us, 2'000'000);
}

}  // namespace
}  // namespace nibble::client
