#include "server/rpc/call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/server_service.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/rpc/auth.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {
namespace {

// Its Now() is read while a call is being let in: after it came, before it is asked whether the server drains.
class AskedClock : public base::Clock {
 public:
  absl::Time Now() override {
    if (asked) asked();
    return absl::UnixEpoch();
  }
  absl::Duration Monotonic() override { return absl::ZeroDuration(); }
  std::function<void()> asked;
};

class CallTest : public testing::Test {
 protected:
  void SetUp() override {
    auto authority = Authority::Open(base::RealFileSystem(), clock_, metrics_, {});
    ASSERT_TRUE(authority.ok()) << authority.status();
    authority_ = *std::move(authority);
    edge_.authority = authority_.get();
  }
  AskedClock clock_;
  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  WorkerPool workers_{1, 8};
  Edge edge_{metrics_, workers_, clock_, draining_};
  std::unique_ptr<Authority> authority_;
  grpc::CallbackServerContext context_;
};

// A drain that begins now, and then looks for calls, must see the one that may be let in: else nobody waits for it.
TEST_F(CallTest, IsThereForADrainBeforeItIsLetIn) {
  std::size_t there = 0;
  clock_.asked = [&] { there = edge_.live_calls.count(); };
  Call call(edge_, &context_, CallType::kUnary, "nibble.v1.ModelService/GetModel");
  EXPECT_TRUE(call.admitted().ok()) << call.admitted();
  EXPECT_EQ(there, 1u);
  EXPECT_TRUE(call.End(absl::OkStatus()).ok());
  EXPECT_EQ(edge_.live_calls.count(), 0u);
}

TEST_F(CallTest, OneThatComesToADrainIsRefusedAndGone) {
  clock_.asked = [&] { draining_ = true; };
  Call call(edge_, &context_, CallType::kUnary, "nibble.v1.ModelService/GetModel");
  EXPECT_EQ(base::Reason(call.admitted()), "DRAINING");
  EXPECT_FALSE(call.End(call.admitted()).ok());
  EXPECT_EQ(edge_.live_calls.count(), 0u);
}

template <typename T>
T Find(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  T message;
  for (const auto& detail : details.details()) detail.UnpackTo(&message);
  return message;
}

// The row INTERNAL / DATA_LOSS of docs/errors.md: what is broken in here is for the log, and this is where it is found.
TEST_F(CallTest, AFaultOfOursIsToldByTheIdItIsLoggedUnder) {
  Call internal(edge_, &context_, CallType::kUnary, "nibble.v1.InferenceService/Generate");
  const auto fault = internal.End(base::WithReason(absl::InternalError("illegal address 0x7f0012345678"), "KERNEL_FAULT"));
  EXPECT_EQ(fault.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(fault.error_message().find("address"), std::string::npos) << fault.error_message();
  EXPECT_NE(fault.error_message().find(internal.request_id()), std::string::npos) << fault.error_message();
  EXPECT_EQ(Find<google::rpc::RequestInfo>(fault).request_id(), internal.request_id());
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(fault).reason(), "KERNEL_FAULT");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(fault).domain(), "nibble");
}

TEST_F(CallTest, OneThatWaitedTooLongIsNotBegun) {
  Call call(edge_, &context_, CallType::kUnary, "nibble.v1.InferenceService/Generate");
  EXPECT_TRUE(call.StillWanted(absl::InfiniteDuration()).ok());
  const absl::Status late = call.StillWanted(absl::ZeroDuration());  // the clock stands at zero
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(base::ReasonMetadata(late)["stage"], "QUEUE");
  EXPECT_EQ(base::ReasonMetadata(late)["tokens"], "0");
  call.Cancel();
  const absl::Status gone = call.StillWanted(absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsCancelled(gone)) << gone;
  EXPECT_EQ(base::ReasonMetadata(gone)["stage"], "QUEUE");
  call.End(gone);
}

// A service whose one method runs until it is let through.
class SlowService : public v1::ServerService::CallbackService {
 public:
  explicit SlowService(Edge& edge) : edge_(edge) {}
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest*, v1::ServerLoad*) override {
    return UnaryOnWorker(edge_, context, "nibble.v1.ServerService/GetLoad", [this](const Call&) {
      const int mine = ++begun;
      while (let_through < mine) std::this_thread::yield();
      return absl::OkStatus();
    });
  }
  std::atomic<int> begun{0}, let_through{0};

 private:
  Edge& edge_;
};

// One call runs, one may wait. What the next is told is what the one that began last had waited.
TEST(UnaryTest, AFullQueueOfCallsTellsHowLongOneWaits) {
  std::atomic<bool> draining{false};
  telemetry::Metrics metrics{{}, {}};
  base::FakeClock clock{absl::UnixEpoch()};
  WorkerPool workers{1, 1};
  Edge edge{metrics, workers, clock, draining};
  SlowService service{edge};
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  const auto stub = v1::ServerService::NewStub(server->InProcessChannel({}));
  const auto ask = [&] {
    return std::async(std::launch::async, [&] {
      grpc::ClientContext context;
      v1::ServerLoad load;
      return stub->GetLoad(&context, {}, &load);
    });
  };
  auto first = ask();
  while (service.begun < 1) std::this_thread::yield();
  auto second = ask();
  while (edge.live_calls.count() < 2) std::this_thread::yield();
  clock.Advance(absl::Milliseconds(2500));
  service.let_through = 1;
  EXPECT_TRUE(first.get().ok());
  while (service.begun < 2) std::this_thread::yield();
  // Of two that come now, one waits and the other is refused, whichever.
  std::future<grpc::Status> more[] = {ask(), ask()};
  const auto is_over = [](std::future<grpc::Status>& one) { return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  while (!is_over(more[0]) && !is_over(more[1])) std::this_thread::yield();
  service.let_through = 100;
  EXPECT_TRUE(second.get().ok());
  int refused = 0;
  for (auto& one : more) {
    const grpc::Status status = one.get();
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(Find<google::rpc::ErrorInfo>(status).reason(), "QUEUE_FULL");
    const auto delay = Find<google::rpc::RetryInfo>(status).retry_delay();
    EXPECT_EQ(delay.seconds(), 2);
    EXPECT_EQ(delay.nanos(), 500'000'000);
  }
  EXPECT_EQ(refused, 1);
  server->Shutdown();
}

}  // namespace
}  // namespace nibble::rpc
