// WatchJobLogs on a job whose trainer is played by the test.
#include "server/rpc/watch_job_logs.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/support/soon.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;

// A service with this method only.
class LogService : public v1::FineTuneService::CallbackService {
 public:
  explicit LogService(CallEnvironment& environment) : environment_(environment) {}
  void Use(jobs::JobController& jobs) { jobs_ = &jobs; }
  grpc::ServerWriteReactor<v1::JobLogChunk>* WatchJobLogs(grpc::CallbackServerContext* context,
                                                          const v1::WatchJobLogsRequest* request) override {
    auto stream = StreamReactor<v1::JobLogChunk>::Make(environment_, context, "nibble.v1.FineTuneService/WatchJobLogs",
                                                       &environment_.watches);
    if (!stream->ended()) rpc::WatchJobLogs(stream, *jobs_, *request);
    return stream.get();
  }

 private:
  CallEnvironment& environment_;
  jobs::JobController* jobs_ = nullptr;
};

class WatchJobLogsTest : public jobs::ControllerFixture {
 protected:
  void SetUp() override {
    ControllerFixture::SetUp();
    service_.Use(*controller_);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::FineTuneService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
    environment_.watch_workers.AwaitIdle();
  }
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::JobLogChunk>> reader;
  };
  std::unique_ptr<Watch> Begin(const v1::WatchJobLogsRequest& request) {
    auto watch = std::make_unique<Watch>();
    watch->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    watch->reader = stub_->WatchJobLogs(&watch->context, request);
    return watch;
  }
  static v1::WatchJobLogsRequest Request(const std::string& id, bool follow = false) {
    v1::WatchJobLogsRequest request;
    request.set_name(id);
    request.set_follow(follow);
    return request;
  }
  // All that a watch sends until it ends: "[attempt@offset]" for each chunk without data, and the data.
  std::string Story(const v1::WatchJobLogsRequest& request, grpc::Status* status) {
    const auto watch = Begin(request);
    std::string story;
    for (v1::JobLogChunk chunk; watch->reader->Read(&chunk);) story += Text(chunk);
    *status = watch->reader->Finish();
    return story;
  }
  std::string Story(const v1::WatchJobLogsRequest& request) {
    grpc::Status status;
    const std::string story = Story(request, &status);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return story;
  }
  static std::string Text(const v1::JobLogChunk& chunk) {
    if (!chunk.data().empty()) return chunk.data();
    return "[" + std::to_string(chunk.attempt()) + "@" + std::to_string(chunk.offset()) + "]";
  }
  // Appends what the watch sends to `got`, which has what earlier calls read, until it is as long as `wanted`. Expects
  // that it equals `wanted`.
  static void Await(Watch& watch, std::string& got, const std::string& wanted) {
    v1::JobLogChunk chunk;
    while (got.size() < wanted.size() && watch.reader->Read(&chunk)) got += Text(chunk);
    EXPECT_EQ(got, wanted);
  }
  std::string SubmitRunning() {
    const std::string id = Submit();
    Run(id);
    return id;
  }
  void Run(const std::string& id) {
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    EXPECT_EQ(State(id), jobs::JobState::kRunning);
  }
  void Log(const std::string& id, std::int64_t attempt, const std::string& text) {
    std::ofstream(state_->paths.attempt(id, attempt) + "/trainer.log", std::ios::binary | std::ios::app) << text;
  }
  void ExpectRefused(const v1::WatchJobLogsRequest& request, grpc::StatusCode code, const std::string& text) {
    grpc::Status status;
    EXPECT_EQ(Story(request, &status), "");
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }

  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  LogService service_{environment_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::FineTuneService::Stub> stub_;
};

TEST_F(WatchJobLogsTest, PresentLogIsSentWhileTheJobRuns) {
  const std::string id = SubmitRunning();
  EXPECT_EQ(Story(Request(id)), "[1@0]") << "the trainer has not written yet";
  Log(id, 1, "one\ntwo\n");
  EXPECT_EQ(Story(Request(id)), "[1@0]one\ntwo\n");
  v1::WatchJobLogsRequest request = Request(id);
  request.set_offset(4);
  EXPECT_EQ(Story(request), "[1@4]two\n");
  request.set_offset(400);
  EXPECT_EQ(Story(request), "[1@400]");
  request.set_offset(0);
  request.set_tail_lines(1);
  EXPECT_EQ(Story(request), "[1@4]two\n");
  request.set_tail_lines(0);
  EXPECT_EQ(Story(request), "[1@8]");
}

// The log has more chunks than may wait for a client that does not read.
TEST_F(WatchJobLogsTest, LargeLogArrivesInSmallChunks) {
  const std::string id = SubmitRunning();
  std::string text;
  for (int i = 0; text.size() < (1u << 20); ++i) text += std::to_string(i) + "\n";
  Log(id, 1, text);
  const auto watch = Begin(Request(id));
  std::string got;
  for (v1::JobLogChunk chunk; watch->reader->Read(&chunk);) {
    EXPECT_LE(chunk.data().size(), 64u << 10);
    EXPECT_EQ(chunk.offset(), static_cast<std::int64_t>(got.size()));
    got += chunk.data();
  }
  EXPECT_TRUE(watch->reader->Finish().ok());
  EXPECT_EQ(got, text);
}

TEST_F(WatchJobLogsTest, FollowedLogContinuesWithTheNextAttemptUntilTheJobEnds) {
  const std::string id = SubmitRunning();
  Log(id, 1, "first");
  const auto watch = Begin(Request(id, /*follow=*/true));
  std::string got;
  Await(*watch, got, "[1@0]first");
  Log(id, 1, " more");
  Await(*watch, got, "[1@0]first more");
  Log(id, 1, " last");
  machine_.Kill(Trainer(id));
  for (int i = 0; i < 50 && controller_->FindLastAttempt(id)->attempt < 2; ++i) {
    controller_->Tick();
    clock_.Advance(absl::Minutes(10));  // the pause before the retry
  }
  Run(id);
  Log(id, 2, "second");
  Await(*watch, got, "[1@0]first more last[2@0]second");
  ControllerFixture::Finish(Trainer(id));
  machine_.Exit(Trainer(id), 0);
  for (int i = 0; i < 5 && State(id) != jobs::JobState::kSucceeded; ++i) controller_->Tick();
  v1::JobLogChunk chunk;
  EXPECT_FALSE(watch->reader->Read(&chunk));
  const grpc::Status status = watch->reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  v1::WatchJobLogsRequest request = Request(id);
  EXPECT_EQ(Story(request), "[2@0]second") << "the last attempt";
  request.set_attempt(1);
  EXPECT_EQ(Story(request), "[1@0]first more last");
  request.set_follow(true);
  EXPECT_EQ(Story(request), "[1@0]first more last[2@0]second");
  // The first attempt is given up, as if its node were lost.
  ASSERT_TRUE(store::LoseAttempt(base::RealFileSystem(), state_->paths.attempt(id, 1)).ok());
  EXPECT_EQ(Story(request), "[1@0]first more last[2@0]second");
}

TEST_F(WatchJobLogsTest, FollowedLogOfAJobWithoutAnAttemptWaitsForTheFirst) {
  const std::string id = Submit();
  ExpectRefused(Request(id), grpc::StatusCode::NOT_FOUND, "no attempt has begun");
  const auto watch = Begin(Request(id, /*follow=*/true));
  std::string got;
  Await(*watch, got, "[0@0]");
  Run(id);
  Log(id, 1, "begun");
  Await(*watch, got, "[0@0][1@0]begun");
}

TEST_F(WatchJobLogsTest, FollowedLogEndsWhenTheJobPauses) {
  const std::string id = Submit();
  ASSERT_TRUE(controller_->Pause(id).ok());
  ASSERT_EQ(State(id), jobs::JobState::kPaused);
  ExpectRefused(Request(id, /*follow=*/true), grpc::StatusCode::NOT_FOUND, "no attempt has begun");
  ASSERT_TRUE(controller_->Resume(id).ok());
  Run(id);
  Log(id, 1, "until the pause");
  const auto watch = Begin(Request(id, /*follow=*/true));
  std::string got;
  Await(*watch, got, "[1@0]until the pause");
  ASSERT_TRUE(controller_->Pause(id).ok());
  Stop(Trainer(id), jobs::Outcome::Kind::kPaused);
  machine_.Exit(Trainer(id), jobs::kExitTempFail);
  for (int i = 0; i < 5 && State(id) != jobs::JobState::kPaused; ++i) controller_->Tick();
  ASSERT_EQ(State(id), jobs::JobState::kPaused);
  v1::JobLogChunk chunk;
  EXPECT_FALSE(watch->reader->Read(&chunk));
  EXPECT_TRUE(watch->reader->Finish().ok());
}

TEST_F(WatchJobLogsTest, WrongRequestsAreRefusedByName) {
  const std::string id = SubmitRunning();
  Log(id, 1, "text");
  v1::WatchJobLogsRequest request = Request(id);
  request.set_attempt(2);
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND, "does not exist; the last one is 1");
  request.set_attempt(0);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "attempt: is 0, wanted 1 or more");
  request.clear_attempt();
  request.set_offset(-1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "offset: is -1");
  request.set_offset(1);
  request.set_tail_lines(1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "tail_lines: must not be set together with offset");
  request.set_offset(0);
  request.set_tail_lines(-1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "tail_lines: is -1");
  ExpectRefused(Request("../" + id), grpc::StatusCode::NOT_FOUND, "job");
}

TEST_F(WatchJobLogsTest, RemovedFilesAreNotFound) {
  const std::string id = SubmitRunning();
  machine_.Exit(Trainer(id), 2);
  ASSERT_TRUE(controller_->Cancel(id).ok());
  for (int i = 0; i < 5 && State(id) != jobs::JobState::kCancelled; ++i) controller_->Tick();
  ASSERT_EQ(State(id), jobs::JobState::kCancelled);
  std::filesystem::remove_all(state_->paths.attempts(id));
  ExpectRefused(Request(id), grpc::StatusCode::NOT_FOUND, "has no files");
  ExpectRefused(Request(id, /*follow=*/true), grpc::StatusCode::NOT_FOUND, "has no files");
}

TEST_F(WatchJobLogsTest, CallerThatGoesAwayFreesItsPlace) {
  const std::string id = SubmitRunning();
  Log(id, 1, "text");
  auto watch = Begin(Request(id, /*follow=*/true));
  std::string got;
  Await(*watch, got, "[1@0]text");
  EXPECT_EQ(environment_.watches.open(), 1);
  watch->context.TryCancel();
  v1::JobLogChunk chunk;
  while (watch->reader->Read(&chunk)) {
  }
  EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(testing_support::Soon([&] { return environment_.watches.open() == 0; }));
}

TEST_F(WatchJobLogsTest, DrainEndsTheWatch) {
  const std::string id = SubmitRunning();
  const auto watch = Begin(Request(id, /*follow=*/true));
  std::string got;
  Await(*watch, got, "[1@0]");
  environment_.drain.Fire();
  v1::JobLogChunk chunk;
  EXPECT_FALSE(watch->reader->Read(&chunk));
  const grpc::Status status = watch->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::ErrorInfo info;
  for (const auto& detail : details.details()) detail.UnpackTo(&info);
  EXPECT_EQ(info.reason(), "DRAINING");
}

}  // namespace
}  // namespace nibble::rpc
