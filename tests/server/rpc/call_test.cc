#include "server/rpc/call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/rpc/auth.h"

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

}  // namespace
}  // namespace nibble::rpc
