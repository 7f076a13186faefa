// WatchJob on a job whose trainer is played by the test: what a slow or returning reader receives.
#include "server/rpc/watch_job.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::rpc {
namespace {

// A service with this method only.
class WatchService : public v1::FineTuneService::CallbackService {
 public:
  explicit WatchService(CallEnvironment& environment) : environment_(environment) {}
  void Use(jobs::JobController& jobs) { jobs_ = &jobs; }
  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext* context,
                                                   const v1::WatchJobRequest* request) override {
    auto stream = StreamReactor<v1::JobEvent>::Make(environment_, context, "nibble.v1.FineTuneService/WatchJob");
    environment_.workers.Run([this, stream, name = request->name(), after = request->after_sequence()] {
      rpc::WatchJob(stream, *jobs_, name, after);
    });
    return stream.get();
  }

 private:
  CallEnvironment& environment_;
  jobs::JobController* jobs_ = nullptr;
};

class WatchJobTest : public jobs::ControllerFixture {
 protected:
  void SetUp() override {
    ControllerFixture::SetUp();
    service_.Use(*controller_);
    environment_.stream_buffer = 4;
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::FineTuneService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    // Waits for the tasks that a watch has queued for the only worker, and for the tasks that these queue.
    for (int i = 0; i < 3; ++i) {
      std::promise<void> done;
      workers_.Run([&] { done.set_value(); });
      done.get_future().wait();
    }
  }
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::JobEvent>> reader;
    v1::Snapshot snapshot;
  };
  // Begins a watch and reads its snapshot.
  std::unique_ptr<Watch> Begin(const std::string& id, std::int64_t after) {
    auto watch = std::make_unique<Watch>();
    v1::WatchJobRequest request;
    request.set_name(id);
    request.set_after_sequence(after);
    watch->reader = stub_->WatchJob(&watch->context, request);
    v1::JobEvent first;
    EXPECT_TRUE(watch->reader->Read(&first));
    EXPECT_TRUE(first.has_snapshot());
    EXPECT_EQ(first.sequence(), 0);
    watch->snapshot = first.snapshot();
    return watch;
  }
  std::string SubmitLong() {
    jobs::JobSpec spec = Spec();
    spec.run.max_steps = 400;
    const std::string id = ControllerFixture::Submit(spec);
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    EXPECT_EQ(State(id), jobs::JobState::kRunning);
    return id;
  }
  void Succeed(const std::string& id) {
    jobs::FakeMachine::Trainer& trainer = Trainer(id);
    ControllerFixture::Finish(trainer);
    machine_.Exit(trainer, 0);
    for (int i = 0; i < 5 && State(id) != jobs::JobState::kSucceeded; ++i) controller_->Tick();
    EXPECT_EQ(State(id), jobs::JobState::kSucceeded);
  }
  static std::string Kind(const v1::JobEvent& event) {
    switch (event.event_case()) {
      case v1::JobEvent::kState:
        return "state:" + v1::JobState_Name(event.state().to()).substr(sizeof "JOB_STATE_" - 1);
      case v1::JobEvent::kStep: return "step";
      case v1::JobEvent::kModel: return "model";
      default: return "other";
    }
  }

  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  WatchService service_{environment_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::FineTuneService::Stub> stub_;
};

// The buffer holds four messages. Events that do not fit are read from the log when there is room: no step and no
// change of state is left out.
TEST_F(WatchJobTest, StalledReaderMissesNothing) {
  const std::string id = SubmitLong();
  const auto watch = Begin(id, 0);
  constexpr int kSteps = 300;
  for (int step = 1; step <= kSteps; ++step) {
    Step(Trainer(id), step);
    if (step % 50 == 0) controller_->Tick();
  }
  Succeed(id);
  std::string story;
  std::int64_t last = 0;
  int steps = 0;
  for (v1::JobEvent event; watch->reader->Read(&event);) {
    ASSERT_EQ(event.sequence(), ++last);
    if (event.has_step()) {
      ASSERT_EQ(event.step().step(), ++steps);
    }
    story += (story.empty() ? "" : " ") + Kind(event);
  }
  const grpc::Status status = watch->reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(story, Story(id).substr(0, story.size()));
  EXPECT_EQ(story.size(), Story(id).size());
  EXPECT_EQ(story.rfind("state:PLANNING state:QUEUED state:PREPARING state:RUNNING step step", 0), 0u)
      << story.substr(0, 80);
  EXPECT_EQ(story.substr(story.size() - 15), "state:SUCCEEDED");
}

TEST_F(WatchJobTest, ReturningReaderSeesEveryEventOnce) {
  const std::string id = SubmitLong();
  std::vector<std::int64_t> seen;
  int step = 0;
  bool ended = false;
  for (int round = 1; !ended && round < 100; ++round) {
    for (int i = 0; i < 3 && step < 40; ++i) Step(Trainer(id), ++step);
    if (step < 40) {
      controller_->Tick();
    } else if (State(id) == jobs::JobState::kRunning) {
      Succeed(id);
    }
    const std::int64_t after = seen.empty() ? 0 : seen.back();
    const auto watch = Begin(id, after);
    EXPECT_GE(watch->snapshot.last_sequence(), after);
    EXPECT_EQ(watch->snapshot.oldest_sequence(), 1) << "the first event is never removed";
    // The watch is cancelled in the middle of the events; more events follow while there is no watch.
    v1::JobEvent event;
    for (int i = 0; i < 1 + round % 5; ++i) {
      if (watch->snapshot.last_sequence() == (seen.empty() ? 0 : seen.back()) &&
          State(id) != jobs::JobState::kSucceeded)
        break;
      if (!watch->reader->Read(&event)) {
        ended = true;
        break;
      }
      seen.push_back(event.sequence());
    }
    if (!ended) watch->context.TryCancel();
    while (watch->reader->Read(&event)) {
    }
    const grpc::Status status = watch->reader->Finish();
    EXPECT_TRUE(!ended || status.ok()) << status.error_message();
  }
  EXPECT_TRUE(ended);
  const auto all = Events(id);
  ASSERT_EQ(seen.size(), all.size());
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], all[i].sequence);
}

// With much room in the buffer, the watch sends pages of 100 events. Two jobs write to the log between the pages.
TEST_F(WatchJobTest, ManyPagesArriveInOrderWhileJobsWrite) {
  environment_.stream_buffer = 1000;
  options_.queue.max_running = 2;
  KillAndReopen();
  service_.Use(*controller_);
  const std::string id = SubmitLong(), other = SubmitLong();
  constexpr int kFirst = 250, kSteps = 390;
  for (int step = 1; step <= kFirst; ++step) Step(Trainer(id), step);
  controller_->Tick();
  const auto watch = Begin(id, 0);
  EXPECT_GT(watch->snapshot.last_sequence(), kFirst);
  std::int64_t last = 0;
  int written = kFirst, steps = 0;
  for (v1::JobEvent event; watch->reader->Read(&event);) {
    ASSERT_EQ(event.sequence(), ++last);
    if (event.has_step()) {
      ASSERT_EQ(event.step().step(), ++steps);
    }
    if (written == kSteps) continue;
    Step(Trainer(id), ++written);
    Step(Trainer(other), written);
    controller_->Tick();
    if (written == kSteps) Succeed(id);
  }
  const grpc::Status status = watch->reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(last, static_cast<std::int64_t>(Events(id).size()));
}

TEST_F(WatchJobTest, NegativeSequenceIsRefusedByName) {
  const std::string id = SubmitLong();
  v1::WatchJobRequest request;
  request.set_name(id);
  request.set_after_sequence(-1);
  grpc::ClientContext context;
  auto reader = stub_->WatchJob(&context, request);
  v1::JobEvent event;
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad;
  for (const auto& detail : details.details()) detail.UnpackTo(&bad);
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "after_sequence");
}

// The job does not depend on its watches: a watch that is cut cancels nothing.
TEST_F(WatchJobTest, DrainEndsTheWatchButNotTheJob) {
  const std::string id = SubmitLong();
  const auto watch = Begin(id, 4);
  // The watch joins the drain list after its snapshot; the arrival of a step shows that it has joined.
  Step(Trainer(id), 1);
  controller_->Tick();
  v1::JobEvent event;
  ASSERT_TRUE(watch->reader->Read(&event));
  EXPECT_EQ(event.sequence(), 5);
  environment_.drain.Fire();
  EXPECT_FALSE(watch->reader->Read(&event));
  const grpc::Status status = watch->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  for (const auto& detail : details.details()) {
    detail.UnpackTo(&info);
    detail.UnpackTo(&retry);
  }
  EXPECT_EQ(info.reason(), "DRAINING");
  EXPECT_GT(retry.retry_delay().seconds(), 0);
  EXPECT_EQ(State(id), jobs::JobState::kRunning);
}

}  // namespace
}  // namespace nibble::rpc
