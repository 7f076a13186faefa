#include "server/rpc/call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/server_service.grpc.pb.h"
#include "server/auth/authority.h"
#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {
namespace {

// A call reads Now() during its admission: after its arrival and before the check whether the server drains. `asked`
// runs at this time.
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
    auto authority = auth::Authority::Open(base::RealFileSystem(), clock_, {});
    ASSERT_TRUE(authority.ok()) << authority.status();
    authority_ = *std::move(authority);
    environment_.authority = authority_.get();
  }
  AskedClock clock_;
  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, clock_, draining_};
  std::unique_ptr<auth::Authority> authority_;
  grpc::CallbackServerContext context_;
};

// A drain that begins during the admission must count this call: the call may still be admitted, and the drain has to
// wait for it.
TEST_F(CallTest, CallIsCountedBeforeItIsAdmitted) {
  std::size_t counted = 0;
  clock_.asked = [&] { counted = environment_.live_calls.count(); };
  Call call(environment_, &context_, CallType::kUnary, "nibble.v1.ModelService/GetModel");
  EXPECT_TRUE(call.admitted().ok()) << call.admitted();
  EXPECT_EQ(counted, 1u);
  EXPECT_TRUE(call.End(absl::OkStatus()).ok());
  EXPECT_EQ(environment_.live_calls.count(), 0u);
}

TEST_F(CallTest, CallDuringADrainIsRefusedAndNotCounted) {
  clock_.asked = [&] { draining_ = true; };
  Call call(environment_, &context_, CallType::kUnary, "nibble.v1.ModelService/GetModel");
  EXPECT_EQ(base::Reason(call.admitted()), "DRAINING");
  EXPECT_FALSE(call.End(call.admitted()).ok());
  EXPECT_EQ(environment_.live_calls.count(), 0u);
}

// KServe's streams count their requests themselves, and only trainers use the other stream of this type.
TEST_F(CallTest, RequestOfAClientIsCountedByItsProtocol) {
  for (const auto& [type, method] :
       {std::pair(CallType::kUnary, "nibble.v1.ModelService/GetModel"),
        std::pair(CallType::kServerStream, "nibble.v1.InferenceService/GenerateStream"),
        std::pair(CallType::kUnary, "inference.GRPCInferenceService/ModelInfer"),
        std::pair(CallType::kBidiStream, "inference.GRPCInferenceService/ModelStreamInfer"),
        std::pair(CallType::kBidiStream, "nibble.internal.v1.TrainerReportService/Report")}) {
    Call call(environment_, &context_, type, method);
    call.End(absl::OkStatus());
  }
  const std::string text = metrics_.Scrape();
  EXPECT_THAT(text, testing::HasSubstr("nibble_client_requests_total{protocol=\"grpc\"} 2\n"));
  EXPECT_THAT(text, testing::HasSubstr("nibble_client_requests_total{protocol=\"kserve\"} 1\n"));
  EXPECT_THAT(text, testing::HasSubstr("nibble_client_requests_total{protocol=\"openai\"} 0\n"));
}

template <typename T>
T Find(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  T message;
  for (const auto& detail : details.details()) detail.UnpackTo(&message);
  return message;
}

// Row INTERNAL / DATA_LOSS of docs/errors.md: the log has the details of a fault, and the client gets the id to find
// them.
TEST_F(CallTest, InternalFaultIsReportedWithTheIdInTheLog) {
  Call internal(environment_, &context_, CallType::kUnary, "nibble.v1.InferenceService/Generate");
  const auto fault =
      internal.End(base::WithReason(absl::InternalError("illegal address 0x7f0012345678"), "KERNEL_FAULT"));
  EXPECT_EQ(fault.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(fault.error_message().find("address"), std::string::npos) << fault.error_message();
  EXPECT_NE(fault.error_message().find(internal.request_id()), std::string::npos) << fault.error_message();
  EXPECT_EQ(Find<google::rpc::RequestInfo>(fault).request_id(), internal.request_id());
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(fault).reason(), "KERNEL_FAULT");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(fault).domain(), "nibble");
}

TEST_F(CallTest, CallThatWaitedTooLongIsNotBegun) {
  Call call(environment_, &context_, CallType::kUnary, "nibble.v1.InferenceService/Generate");
  EXPECT_TRUE(call.StillWanted(absl::InfiniteDuration()).ok());
  const absl::Status late = call.StillWanted(absl::ZeroDuration());  // the clock is at zero
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(base::ReasonMetadata(late)["stage"], "QUEUE");
  EXPECT_EQ(base::ReasonMetadata(late)["tokens"], "0");
  call.Cancel();
  const absl::Status gone = call.StillWanted(absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsCancelled(gone)) << gone;
  EXPECT_EQ(base::ReasonMetadata(gone)["stage"], "QUEUE");
  call.End(gone);
}

// A service whose only method runs until `let_through` lets it end.
class SlowService : public v1::ServerService::CallbackService {
 public:
  explicit SlowService(CallEnvironment& environment) : environment_(environment) {}
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
                                    v1::ServerLoad*) override {
    return UnaryOnWorker(environment_, context, "nibble.v1.ServerService/GetLoad", [this](const Call&) {
      const int mine = ++begun;
      while (let_through < mine) std::this_thread::yield();
      return absl::OkStatus();
    });
  }
  std::atomic<int> begun{0}, let_through{0};

 private:
  CallEnvironment& environment_;
};

// One worker and a fake clock: one call runs, one may wait.
class UnaryTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::ServerService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown();
  }
  std::future<grpc::Status> Ask(std::optional<std::chrono::hours> deadline = std::nullopt) {
    return std::async(std::launch::async, [this, deadline] {
      grpc::ClientContext context;
      if (deadline.has_value()) context.set_deadline(std::chrono::system_clock::now() + *deadline);
      v1::ServerLoad load;
      return stub_->GetLoad(&context, {}, &load);
    });
  }
  void AwaitBegun(int number) {
    while (service_.begun < number) std::this_thread::yield();
  }
  // The status of a call that waits for the worker for the time `wait`.
  grpc::Status After(absl::Duration wait, std::optional<std::chrono::hours> deadline) {
    const int running = service_.begun + 1;
    auto busy = Ask(std::chrono::hours(1000));
    AwaitBegun(running);
    auto waiting = Ask(deadline);
    while (environment_.live_calls.count() < 2) std::this_thread::yield();
    clock_.Advance(wait);
    service_.let_through = 100;
    EXPECT_TRUE(busy.get().ok()) << "a call that has begun is not interrupted";
    const grpc::Status status = waiting.get();
    service_.let_through = service_.begun.load();  // the next call that begins is held again
    return status;
  }

  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::FakeClock clock_{absl::UnixEpoch()};
  base::WorkerPool workers_{1, 1};
  CallEnvironment environment_{metrics_, workers_, clock_, draining_};
  SlowService service_{environment_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ServerService::Stub> stub_;
};

// The suggested delay is the time that the last call to begin had waited.
TEST_F(UnaryTest, FullQueueReportsHowLongTheLastCallWaited) {
  auto first = Ask();
  AwaitBegun(1);
  auto second = Ask();
  while (environment_.live_calls.count() < 2) std::this_thread::yield();
  clock_.Advance(absl::Milliseconds(2500));
  service_.let_through = 1;
  EXPECT_TRUE(first.get().ok());
  AwaitBegun(2);
  // Of two further calls, one waits and the other is refused.
  std::future<grpc::Status> more[] = {Ask(), Ask()};
  const auto is_over = [](std::future<grpc::Status>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  while (!is_over(more[0]) && !is_over(more[1])) std::this_thread::yield();
  service_.let_through = 100;
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
}

TEST_F(UnaryTest, CallWithoutADeadlineGetsTheDefault) {
  environment_.default_deadline = absl::Milliseconds(10);
  const grpc::Status in_time = After(absl::Milliseconds(9), std::nullopt);
  EXPECT_TRUE(in_time.ok()) << in_time.error_message();
  EXPECT_EQ(service_.begun.load(), 2);
  const grpc::Status late = After(absl::Milliseconds(10), std::nullopt);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << late.error_message();
  const auto info = Find<google::rpc::ErrorInfo>(late);
  EXPECT_EQ(info.reason(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(info.metadata().at("stage"), "QUEUE");
  EXPECT_EQ(service_.begun.load(), 3) << "the call was not begun";
}

// The default is only for calls without a deadline. The deadline of a client applies, whether it is longer or shorter.
TEST_F(UnaryTest, DeadlineOfTheClientOverridesTheDefault) {
  environment_.default_deadline = absl::Milliseconds(10);
  const grpc::Status patient = After(absl::Hours(9), std::chrono::hours(10));
  EXPECT_TRUE(patient.ok()) << patient.error_message();
  EXPECT_EQ(service_.begun.load(), 2);
  environment_.default_deadline = absl::Hours(100);
  const grpc::Status late = After(absl::Hours(11), std::chrono::hours(10));
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << late.error_message();
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(late).metadata().at("stage"), "QUEUE")
      << "the server ended the call, not the client's clock";
  EXPECT_EQ(service_.begun.load(), 3) << "the call was not begun";
}

}  // namespace
}  // namespace nibble::rpc
