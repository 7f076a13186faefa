#include "server/rpc/stream_reactor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nibble/v1/server_service.grpc.pb.h"
#include "server/base/clock.h"
#include "tests/server/rpc/handled.h"

namespace nibble::rpc {
namespace {

using Stream = StreamReactor<v1::ServerLoad>;

// A service whose only stream is fed by the test.
class FedService : public v1::ServerService::CallbackService {
 public:
  explicit FedService(CallEnvironment& environment) : environment_(environment) {}
  grpc::ServerWriteReactor<v1::ServerLoad>* WatchLoad(grpc::CallbackServerContext* context,
                                                      const v1::WatchLoadRequest*) override {
    auto stream = Stream::Make(environment_, context, "nibble.v1.ServerService/WatchLoad", slots);
    if (on_space) stream->OnSpace(on_space);
    Stream* raw = stream.get();
    {
      base::MutexLock lock(mutex_);
      stream_ = std::move(stream);
    }
    ready_.NotifyAll();
    return raw;
  }
  std::shared_ptr<Stream> Take() {
    base::MutexLock lock(mutex_);
    ready_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ != nullptr; });
    return std::move(stream_);
  }
  std::function<void()> on_space;
  base::StreamSlots* slots = nullptr;

 private:
  CallEnvironment& environment_;
  base::Mutex mutex_;
  base::Condition ready_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
};

class StreamReactorTest : public ::testing::Test {
 protected:
  void Start() {
    environment_.stream_buffer = 4;
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::ServerService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  // Large, so that a few messages fill the transport's window.
  static v1::ServerLoad Message(int number) {
    v1::ServerLoad load;
    load.set_requests_total(number);
    load.mutable_residents()->add_models()->set_name(std::string(300'000, 'x'));
    return load;
  }

  // Pushes until the transport takes no more, because the client reads nothing.
  static void Fill(Stream& stream) {
    do {
      v1::ServerLoad message = Message(1);
      while (stream.Push(message)) message = Message(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } while (stream.space() > 0);
  }

  int Handled(const char* code) {
    return testing_support::Handled(metrics_, "server_stream", "nibble.v1.ServerService/WatchLoad", code);
  }

  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  FedService service_{environment_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ServerService::Stub> stub_;
  grpc::ClientContext context_;
};

TEST_F(StreamReactorTest, PushedMessagesArriveInOrderAndThenTheStatus) {
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  std::thread feeder([&] {
    for (int i = 1; i <= 50;) {
      v1::ServerLoad message = Message(i);
      if (stream->Push(message)) ++i;
    }
    stream->End(absl::NotFoundError("no more"));
  });
  v1::ServerLoad load;
  for (int i = 1; i <= 50; ++i) {
    ASSERT_TRUE(reader->Read(&load));
    ASSERT_EQ(load.requests_total(), i);
  }
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  feeder.join();
  v1::ServerLoad late = Message(1);
  EXPECT_FALSE(stream->Push(late));
  EXPECT_EQ(stream->space(), 0u);
}

TEST_F(StreamReactorTest, StalledReaderFillsOnlyTheBuffer) {
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  int taken = 0;
  while (taken < 1000) {
    v1::ServerLoad message = Message(taken + 1);
    if (stream->Push(message)) {
      ++taken;
      continue;
    }
    // The message is unchanged and can be pushed again.
    EXPECT_EQ(message.requests_total(), taken + 1);
    // The transport may still be taking a message: only a buffer that stays full counts.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (stream->space() == 0) break;
  }
  EXPECT_LT(taken, 100);
  stream->Abort(absl::ResourceExhaustedError("too slow"));
  v1::ServerLoad load;
  int read = 0;
  while (reader->Read(&load)) ++read;
  EXPECT_LE(read, taken);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(StreamReactorTest, ACancelReachesTheProducer) {
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  v1::ServerLoad message = Message(1);
  ASSERT_TRUE(stream->Push(message));
  v1::ServerLoad load;
  ASSERT_TRUE(reader->Read(&load));
  context_.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (!stream->call().cancel().cancelled()) std::this_thread::yield();
  while (!stream->ended()) std::this_thread::yield();
  EXPECT_FALSE(stream->Push(message));
  while (Handled("CANCELLED") == 0) std::this_thread::yield();
  EXPECT_EQ(Handled("DEADLINE_EXCEEDED"), 0);
}

TEST_F(StreamReactorTest, DeadlineEndsTheStreamAndIsCountedAsADeadline) {
  Start();
  // If the deadline passed before the call arrived, the service would not see the call.
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  EXPECT_LT(stream->call().deadline(), absl::InfiniteDuration());
  v1::ServerLoad load;
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  while (!stream->ended()) std::this_thread::yield();
  while (Handled("DEADLINE_EXCEEDED") == 0) std::this_thread::yield();
  EXPECT_EQ(Handled("CANCELLED"), 0) << "it is not counted as a cancel";
}

TEST_F(StreamReactorTest, SpaceIsReportedWhenTheQueueIsEmpty) {
  std::atomic<int> notified{0};
  service_.on_space = [&] { ++notified; };
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  for (int i = 1; i <= 3; ++i) {
    v1::ServerLoad message = Message(i);
    ASSERT_TRUE(stream->Push(message));
  }
  v1::ServerLoad load;
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(reader->Read(&load));
  while (notified == 0) std::this_thread::yield();
  EXPECT_EQ(stream->space(), 4u);
  stream->End(absl::OkStatus());
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(StreamReactorTest, TakenCountsTheMessagesThatTheReaderTook) {
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  EXPECT_TRUE(stream->caught_up());
  for (int i = 1; i <= 3; ++i) {
    v1::ServerLoad message = Message(i);
    ASSERT_TRUE(stream->Push(message));
  }
  v1::ServerLoad load;
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(reader->Read(&load));
  while (!stream->caught_up()) std::this_thread::yield();
  EXPECT_EQ(stream->taken(), 3u);
  stream->End(absl::OkStatus());
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_TRUE(reader->Finish().ok());
}

// C12 (docs/faults.md): without the cut, a client that reads nothing would keep its place, and the message being
// written, as long as its connection lives.
TEST_F(StreamReactorTest, AbortedStreamWhoseClientReadsNothingIsCutOff) {
  base::StreamSlots slots("--max_watches", 1);
  service_.slots = &slots;
  environment_.last_read = absl::Milliseconds(100);
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  Fill(*stream);
  stream->Abort(absl::ResourceExhaustedError("too slow"));
  stream.reset();
  while (slots.open() > 0) std::this_thread::yield();
  while (Handled("RESOURCE_EXHAUSTED") == 0) std::this_thread::yield();
  v1::ServerLoad load;
  while (reader->Read(&load)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// C12: the same for an answer that ended before the client had read all of it.
TEST_F(StreamReactorTest, EndedStreamWhoseClientReadsNothingIsCutOff) {
  base::StreamSlots slots("--max_watches", 1);
  service_.slots = &slots;
  environment_.slow_reader = environment_.last_read = absl::Milliseconds(100);
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  Fill(*stream);
  stream->End(absl::OkStatus());
  stream.reset();
  while (slots.open() > 0) std::this_thread::yield();
  while (Handled("RESOURCE_EXHAUSTED") == 0) std::this_thread::yield();
  EXPECT_EQ(Handled("OK"), 0);
  v1::ServerLoad load;
  while (reader->Read(&load)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

// C12: without a minimum rate, a client that reads a chunk now and then would keep the place of its download for hours.
TEST_F(StreamReactorTest, WatchedReaderMustTakeMessagesAtTheMinimumRate) {
  environment_.slow_reader = absl::Milliseconds(400);
  Start();
  for (const double min_rate : {1000.0, 0.0}) {  // messages per second; the reader below takes at most 20
    grpc::ClientContext context;
    auto reader = stub_->WatchLoad(&context, {});
    auto stream = service_.Take();
    Fill(*stream);
    stream->WatchReader(min_rate);
    v1::ServerLoad message;
    // 24 messages take three windows of slow_reader. With a minimum rate, the reader is cut off long before 400.
    const int most = min_rate > 0 ? 400 : 24;
    for (int i = 0; i < most && reader->Read(&message); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      v1::ServerLoad next = Message(1);
      stream->Push(next);
    }
    EXPECT_EQ(stream->ended(), min_rate > 0) << min_rate;
    stream->End(absl::OkStatus());
    while (reader->Read(&message)) {
    }
    EXPECT_EQ(reader->Finish().error_code(),
              min_rate > 0 ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK);
  }
}

TEST_F(StreamReactorTest, PlaceIsTakenUntilTheStreamIsDone) {  // C12
  base::StreamSlots slots("--max_watches", 1);
  service_.slots = &slots;
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  EXPECT_EQ(slots.open(), 1);
  grpc::ClientContext another;
  auto refused = stub_->WatchLoad(&another, {});
  v1::ServerLoad load;
  EXPECT_FALSE(refused->Read(&load));
  const grpc::Status status = refused->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("--max_watches"));
  stream->End(absl::OkStatus());
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_TRUE(reader->Finish().ok());
  while (slots.open() > 0) std::this_thread::yield();  // although the test holds the stream
}

// The client may already have gone when a producer gets the stream. The callback that the producer then sets owns the
// stream: if the stream kept the callback, neither would ever be released.
TEST_F(StreamReactorTest, CallbackSetAfterTheEndIsNotKept) {
  Start();
  auto reader = stub_->WatchLoad(&context_, {});
  auto stream = service_.Take();
  context_.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (stream.use_count() > 1) std::this_thread::yield();  // gRPC has released it
  const auto held = std::make_shared<int>(1);
  stream->OnSpace([held] {});
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace nibble::rpc
