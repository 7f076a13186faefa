// While a model is being loaded, which takes as long as the test wants, the only worker of the server answers other
// calls, and calls that wait for the model can be cancelled.
#include "server/serve/model_loads.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/rpc/server_service.h"
#include "tests/server/rpc/handled.h"
#include "tests/server/rpc/inference_fixture.h"

namespace nibble::rpc {
namespace {

using testing_support::Handled;
using testing_support::InfoOf;
using testing_support::Soon;

// Blocks the loads of the models for which it is shut.
class Gate {
 public:
  void Shut(const std::string& name) {
    base::MutexLock lock(mutex_);
    shut_.insert(name);
  }
  void Open() {
    base::MutexLock lock(mutex_);
    shut_.clear();
    changed_.NotifyAll();
  }
  absl::Status Pass(const std::string& name, const serve::ModelManager::Cancelled& cancelled) {
    base::MutexLock lock(mutex_);
    ++begun_[name];
    changed_.NotifyAll();
    while (shut_.contains(name)) {
      if (cancelled && cancelled()) return absl::CancelledError("stopped");
      // Polls, because a cancel does not notify `changed_`.
      changed_.WaitFor(lock, std::chrono::milliseconds(1), [] { return false; });
    }
    return absl::OkStatus();
  }
  int begun(const std::string& name) {
    base::MutexLock lock(mutex_);
    return begun_[name];
  }
  bool AwaitBegun(const std::string& name) {
    return Soon([&] { return begun(name) > 0; });
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::set<std::string> shut_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> begun_ ABSL_GUARDED_BY(mutex_);
};

class ModelLoadsTest : public testing_support::InferenceFixture {
 protected:
  // A Generate in progress.
  struct Asked {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    std::future<grpc::Status> status;
    bool ended() const { return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  };

  void SetUp() override {
    OpenState();
    ASSERT_NE(state_, nullptr);
    const auto locate =
        [this](const std::string& name,
               const serve::ModelManager::Cancelled& cancelled) -> absl::StatusOr<serve::ModelManager::Artifact> {
      if (const absl::Status passed = gate_.Pass(name, cancelled); !passed.ok()) return passed;
      if (damaged_) return absl::DataLossError("a bit has changed");
      return serve::ModelManager::Artifact{models_.int8(), nullptr};
    };
    server_service_ = std::make_unique<ServerService>(
        environment_, [] { return v1::ServerInfo(); }, [] { return v1::ServerLoad(); },
        [](std::optional<absl::Duration>) {});
    Serve(locate, Exists, {server_service_.get()});
    server_stub_ = v1::ServerService::NewStub(server_->InProcessChannel({}));
    const grpc::Status warm = Generate("warm");
    ASSERT_TRUE(warm.ok()) << warm.error_message();
  }
  void TearDown() override {
    server_stub_.reset();
    InferenceFixture::TearDown();
  }

  static absl::Status Exists(const std::string& name) {
    if (name != "none") return absl::OkStatus();
    return base::WithReason(absl::NotFoundError("there is no model named \"none\""), "MODEL", {{"name", name}});
  }
  static v1::GenerateRequest Ask(const std::string& model) {
    v1::GenerateRequest request;
    request.set_model(model);
    request.set_text("a b c");
    request.set_request_id("of " + model);
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  grpc::Status Generate(const std::string& model) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::GenerateResponse response;
    return inference_->Generate(&context, Ask(model), &response);
  }
  std::unique_ptr<Asked> Begin(const std::string& model,
                               std::optional<std::chrono::system_clock::time_point> deadline = std::nullopt) {
    auto asked = std::make_unique<Asked>();
    if (deadline.has_value()) asked->context.set_deadline(*deadline);
    asked->status = std::async(std::launch::async, [this, model, one = asked.get()] {
      return inference_->Generate(&one->context, Ask(model), &one->response);
    });
    return asked;
  }
  grpc::Status GetLoad() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ServerLoad load;
    return server_stub_->GetLoad(&context, {}, &load);
  }
  // Waits until exactly `calls` calls wait for a load, no other call is in progress, and the worker is free again.
  bool AwaitWaiting(std::size_t calls) {
    return Soon([&] { return loads_->num_waiting() == calls && environment_.live_calls.count() == calls; }) &&
           GetLoad().ok();
  }
  // The number of requests that Abort finds.
  int Abort(const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.add_request_ids(id);
    v1::AbortResponse response;
    EXPECT_TRUE(inference_->Abort(&context, request, &response).ok());
    return response.aborted_request_ids_size();
  }
  static void ExpectStopped(const grpc::Status& status, grpc::StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    const auto info = InfoOf(status);
    EXPECT_EQ(info.reason(), reason);
    ASSERT_TRUE(info.metadata().contains("stage"));
    EXPECT_EQ(info.metadata().at("stage"), "QUEUE");
    EXPECT_EQ(info.metadata().at("tokens"), "0");
  }

  Gate gate_;
  std::atomic<bool> damaged_{false};
  std::unique_ptr<ServerService> server_service_;
  std::unique_ptr<v1::ServerService::Stub> server_stub_;
};

TEST_F(ModelLoadsTest, OneWorkerAnswersOthersWhileAModelIsLoaded) {
  gate_.Shut("cold");
  std::vector<std::unique_ptr<Asked>> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(Begin("cold"));
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(4));
  for (int i = 0; i < 3; ++i) {
    const grpc::Status load = GetLoad();
    EXPECT_TRUE(load.ok()) << load.error_message();
    const grpc::Status loaded = Generate("warm");
    EXPECT_TRUE(loaded.ok()) << loaded.error_message();
  }
  for (const auto& one : waiting) EXPECT_FALSE(one->ended());
  gate_.Open();
  for (const auto& one : waiting) {
    const grpc::Status status = one->status.get();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(one->response.outputs(0).token_ids_size(), 4);
  }
  EXPECT_EQ(gate_.begun("cold"), 1) << "one load for all";
}

TEST_F(ModelLoadsTest, EveryKindOfCallWaitsForItsModel) {
  gate_.Shut("cold");
  v1::ScoreRequest score;
  score.set_model("cold");
  score.set_text("a b c");
  v1::GenerateRequest talk = Ask("cold");
  auto* message = talk.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a b");
  v1::ChatRequest chat;
  *chat.mutable_request() = talk;
  v1::ChatStreamRequest chat_stream;
  *chat_stream.mutable_request() = talk;
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = Ask("cold");
  const auto read = [](auto reader) {
    int tokens = 0;
    for (v1::GenerateReply reply; reader->Read(&reply);) tokens += reply.delta().token_ids_size();
    EXPECT_GT(tokens, 0);
    return reader->Finish();
  };
  const std::vector<std::function<grpc::Status(grpc::ClientContext&)>> calls = {
      [&](grpc::ClientContext& context) {
        v1::ScoreResponse response;
        const grpc::Status status = inference_->Score(&context, score, &response);
        EXPECT_GT(response.tokens_size(), 1);
        return status;
      },
      [&](grpc::ClientContext& context) {
        v1::GenerateResponse response;
        return inference_->Chat(&context, chat, &response);
      },
      [&](grpc::ClientContext& context) { return read(inference_->GenerateStream(&context, stream)); },
      [&](grpc::ClientContext& context) { return read(inference_->ChatStream(&context, chat_stream)); }};
  std::vector<std::future<grpc::Status>> statuses;
  for (const auto& call : calls) {
    statuses.push_back(std::async(std::launch::async, [&call] {
      grpc::ClientContext context;
      return call(context);
    }));
  }
  EXPECT_TRUE(AwaitWaiting(calls.size()));
  EXPECT_TRUE(Generate("warm").ok());
  gate_.Open();
  for (auto& one : statuses) {
    const grpc::Status status = one.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(gate_.begun("cold"), 1);
}

TEST_F(ModelLoadsTest, CancelledCallEndsAtOnceAndTheOthersAreAnswered) {
  gate_.Shut("cold");
  const auto gone = Begin("cold");
  const auto stays = Begin("cold");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(2));
  gone->context.TryCancel();
  EXPECT_EQ(gone->status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AwaitWaiting(1)) << "the server has finished with it too";
  EXPECT_FALSE(stays->ended());
  gate_.Open();
  const grpc::Status status = stays->status.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(gate_.begun("cold"), 1);
}

TEST_F(ModelLoadsTest, LoadContinuesForTheNextCall) {
  gate_.Shut("cold");
  const auto gone = Begin("cold");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(1));
  gone->context.TryCancel();
  EXPECT_EQ(gone->status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AwaitWaiting(0));
  EXPECT_EQ(Abort("of cold"), 0) << "the request is forgotten";
  {
    grpc::ClientContext context;
    v1::GenerateStreamRequest request;
    *request.mutable_request() = Ask("cold");
    auto reader = inference_->GenerateStream(&context, request);
    EXPECT_TRUE(AwaitWaiting(1));
    context.TryCancel();
    v1::GenerateReply reply;
    EXPECT_FALSE(reader->Read(&reply));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(AwaitWaiting(0));
  EXPECT_TRUE(Soon([&] { return Abort("of cold") == 0; })) << "gRPC ends a stream before the service does";
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return manager_->IsLoaded("cold"); }));
  const grpc::Status status = Generate("cold");
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(gate_.begun("cold"), 1);
}

TEST_F(ModelLoadsTest, AnAbortEndsTheWait) {
  gate_.Shut("cold");
  const auto asked = Begin("cold");
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Ask("cold");
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  EXPECT_TRUE(AwaitWaiting(2));
  int aborted = 0;
  EXPECT_TRUE(Soon([&] {
    aborted += Abort("of cold");
    return environment_.live_calls.count() == 0;
  }));
  EXPECT_GT(aborted, 0);
  ExpectStopped(asked->status.get(), grpc::StatusCode::CANCELLED, "CANCELLED");
  v1::GenerateReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  ExpectStopped(reader->Finish(), grpc::StatusCode::CANCELLED, "CANCELLED");
  EXPECT_EQ(Abort("of cold"), 0);
  gate_.Open();
}

TEST_F(ModelLoadsTest, ADeadlineEndsTheWait) {
  gate_.Shut("cold");
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    v1::GenerateResponse response;
    EXPECT_EQ(inference_->Generate(&context, Ask("cold"), &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_TRUE(AwaitWaiting(0));
  }
  // If the client gave no deadline, the server's applies; the server's own error arrives.
  environment_.generate_deadline = absl::Milliseconds(100);
  ExpectStopped(Begin("cold")->status.get(), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED");
  {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    request.set_model("cold");
    request.set_text("a b c");
    v1::ScoreResponse response;
    ExpectStopped(inference_->Score(&context, request, &response), grpc::StatusCode::DEADLINE_EXCEEDED,
                  "DEADLINE_EXCEEDED");
  }
  {
    grpc::ClientContext context;
    v1::GenerateStreamRequest request;
    *request.mutable_request() = Ask("cold");
    auto reader = inference_->GenerateStream(&context, request);
    v1::GenerateReply reply;
    EXPECT_FALSE(reader->Read(&reply));
    ExpectStopped(reader->Finish(), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED");
  }
  gate_.Open();
}

// To the server, a client whose deadline has passed looks like one that cancels.
TEST_F(ModelLoadsTest, DeadlinesAndCancelsOfClientsAreCountedApart) {
  constexpr char kUnary[] = "nibble.v1.InferenceService/Generate",
                 kStream[] = "nibble.v1.InferenceService/GenerateStream";
  gate_.Shut("cold");
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Ask("cold");
  v1::GenerateReply reply;
  {
    grpc::ClientContext streams[2];
    std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> readers[2];
    std::unique_ptr<Asked> unary[2];
    const auto deadline =
        std::chrono::system_clock::now() + std::chrono::seconds(1);  // the calls must reach the server
    for (int i = 0; i < 2; ++i) {
      unary[i] = Begin("cold", deadline);
      streams[i].set_deadline(deadline);
      readers[i] = inference_->GenerateStream(&streams[i], request);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(unary[i]->status.get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      EXPECT_FALSE(readers[i]->Read(&reply));
      EXPECT_EQ(readers[i]->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    }
  }
  EXPECT_TRUE(Soon([&] { return Handled(metrics_, "unary", kUnary, "DEADLINE_EXCEEDED") == 2; }));
  EXPECT_TRUE(Soon([&] { return Handled(metrics_, "server_stream", kStream, "DEADLINE_EXCEEDED") == 2; }));
  EXPECT_EQ(Handled(metrics_, "unary", kUnary, "CANCELLED"), 0);
  EXPECT_EQ(Handled(metrics_, "server_stream", kStream, "CANCELLED"), 0);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  auto reader = inference_->GenerateStream(&context, request);
  const auto gone = Begin("cold");
  EXPECT_TRUE(AwaitWaiting(2));
  context.TryCancel();
  gone->context.TryCancel();
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(gone->status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Soon([&] { return Handled(metrics_, "unary", kUnary, "CANCELLED") == 1; }));
  EXPECT_TRUE(Soon([&] { return Handled(metrics_, "server_stream", kStream, "CANCELLED") == 1; }));
  EXPECT_EQ(Handled(metrics_, "unary", kUnary, "DEADLINE_EXCEEDED"), 2);
  EXPECT_EQ(Handled(metrics_, "server_stream", kStream, "DEADLINE_EXCEEDED"), 2);
  gate_.Open();
}

TEST_F(ModelLoadsTest, UnknownModelDoesNotWaitForALoad) {
  for (const char* name : {"cold", "frozen"}) gate_.Shut(name);
  const auto cold = Begin("cold"), frozen = Begin("frozen");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(gate_.AwaitBegun("frozen"));
  const grpc::Status status = Generate("none");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
  EXPECT_EQ(InfoOf(status).reason(), "MODEL");
  EXPECT_EQ(Abort("of none"), 0);
  gate_.Open();
  EXPECT_TRUE(cold->status.get().ok());
  EXPECT_TRUE(frozen->status.get().ok());
}

TEST_F(ModelLoadsTest, LoadWithoutAWaitingCallIsNotBegun) {
  for (const char* name : {"cold", "frozen"}) gate_.Shut(name);
  const auto cold = Begin("cold"), frozen = Begin("frozen");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(gate_.AwaitBegun("frozen"));
  const auto third = Begin("third");  // its load waits for "cold" or "frozen"
  EXPECT_TRUE(AwaitWaiting(3));
  third->context.TryCancel();
  EXPECT_EQ(third->status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AwaitWaiting(2));
  gate_.Open();
  EXPECT_TRUE(cold->status.get().ok());
  EXPECT_TRUE(frozen->status.get().ok());
  for (const char* name : {"fourth", "fifth"}) EXPECT_TRUE(Generate(name).ok());  // earlier loads have had their turn
  EXPECT_EQ(gate_.begun("third"), 0);
  EXPECT_TRUE(Generate("third").ok());
  EXPECT_EQ(gate_.begun("third"), 1);
}

TEST_F(ModelLoadsTest, FailedLoadIsRetriedByTheNextCall) {
  gate_.Shut("cold");
  damaged_ = true;
  const auto one = Begin("cold"), other = Begin("cold");
  EXPECT_TRUE(AwaitWaiting(2));
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  gate_.Open();
  EXPECT_EQ(one->status.get().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(other->status.get().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(gate_.begun("cold"), 1);
  EXPECT_EQ(Abort("of cold"), 0);
  damaged_ = false;
  EXPECT_TRUE(Generate("cold").ok());
  EXPECT_EQ(gate_.begun("cold"), 2);
}

// The model is unloaded after its load has ended and before the worker continues the call.
TEST_F(ModelLoadsTest, ModelUnloadedBeforeItsCallContinuesStillAnswers) {
  gate_.Shut("cold");
  const auto asked = Begin("cold");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(1));
  std::promise<void> free_worker;
  workers_.Run([held = free_worker.get_future().share()] { held.wait(); });
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return manager_->IsLoaded("cold"); }));
  EXPECT_TRUE(manager_->Unload("cold").ok());
  EXPECT_FALSE(asked->ended());
  free_worker.set_value();
  const grpc::Status status = asked->status.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(gate_.begun("cold"), 1);
  EXPECT_FALSE(manager_->IsLoaded("cold"));
}

TEST_F(ModelLoadsTest, FullQueueRefusesTheNextCallWithARetryDelay) {
  base::FakeClock clock(absl::UnixEpoch());
  serve::ModelLoads few(*manager_, workers_, clock, Exists, /*max_waiting=*/2);
  gate_.Shut("cold");
  std::atomic<int> loaded = 0;
  const auto then = [&](const serve::ModelLoads::Loaded& model) { loaded += model.ok(); };
  const auto one = few.Wait("cold", "", then), other = few.Wait("cold", "", then);
  ASSERT_TRUE(one.ok() && other.ok());
  const absl::Status refused = few.Wait("cold", "", then).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL");
  const auto retry_ms = [&](const std::string& model) {
    return base::ReasonMetadata(few.Wait(model, "", then).status())["retry_ms"];
  };
  EXPECT_EQ(retry_ms("cold"), "100") << "no load has taken any time";
  // The first load has not ended: the estimate is its time so far.
  clock.Advance(absl::Seconds(7));
  EXPECT_EQ(retry_ms("cold"), "7000");
  EXPECT_EQ(retry_ms("frozen"), "7000");
  clock.Advance(absl::Minutes(5));
  EXPECT_EQ(retry_ms("cold"), "60000") << "the estimate is at most a minute";
  EXPECT_EQ(few.num_waiting(), 2u);
  EXPECT_TRUE(absl::IsNotFound(few.Wait("none", "", then).status()));
  EXPECT_TRUE(few.Forget("cold", *other));
  EXPECT_FALSE(few.Forget("cold", *other));
  EXPECT_FALSE(few.Forget("warm", *one));
  EXPECT_TRUE(few.Wait("cold", "", then).ok()) << "a place is free again";
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return loaded == 2; }));
  EXPECT_FALSE(few.Forget("cold", *one));
  EXPECT_EQ(few.num_waiting(), 0u);
}

// C4 (docs/faults.md): without this limit, one principal could fill all places, and all others would be refused.
TEST_F(ModelLoadsTest, C4OnePrincipalTakesNoMoreThanAQuarterOfThePlaces) {
  serve::ModelLoads some(*manager_, workers_, base::RealClock(), Exists, /*max_waiting=*/8);
  gate_.Shut("cold");
  gate_.Shut("frozen");
  std::atomic<int> loaded = 0;
  const auto then = [&](const serve::ModelLoads::Loaded& model) { loaded += model.ok(); };
  const auto first = some.Wait("cold", "ci", then);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(some.Wait("frozen", "ci", then).ok());
  for (const char* model : {"cold", "frozen", "third"}) {
    const absl::Status refused = some.Wait(model, "ci", then).status();
    EXPECT_EQ(base::Reason(refused), "QUEUE_FULL") << refused;
    EXPECT_EQ(base::ReasonMetadata(refused)["max"], "2");
    EXPECT_NE(base::ReasonMetadata(refused)["retry_ms"], "");
  }
  EXPECT_EQ(base::Reason(some.Await("cold", "ci", [] { return false; }).status()), "QUEUE_FULL");
  EXPECT_TRUE(some.Wait("cold", "ann", then).ok()) << "another principal finds a place";
  EXPECT_TRUE(some.Forget("cold", *first));
  EXPECT_TRUE(some.Wait("cold", "ci", then).ok()) << "one of its places is free again";
  EXPECT_FALSE(some.Wait("cold", "ci", then).ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(some.Wait("cold", "", then).ok()) << "without tokens there are no principals";
  EXPECT_EQ(some.num_waiting(), 8u);
  EXPECT_EQ(base::ReasonMetadata(some.Wait("cold", "bob", then).status()).count("max"), 0u) << "all places are taken";
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return loaded == 8; }));
  EXPECT_TRUE(some.Wait("other", "ci", then).ok()) << "finished loads free their places";
  EXPECT_TRUE(some.Wait("other", "ci", then).ok());
  EXPECT_TRUE(Soon([&] { return loaded == 10; }));
}

// While a load runs, the estimate is the time of the previous load, until the running one takes longer.
TEST_F(ModelLoadsTest, EstimateIsTheTimeOfTheLastLoadUntilTheRunningOneTakesLonger) {
  base::FakeClock clock(absl::UnixEpoch());
  serve::ModelLoads few(*manager_, workers_, clock, Exists, /*max_waiting=*/1);
  std::atomic<int> loaded = 0;
  const auto then = [&](const serve::ModelLoads::Loaded& model) { loaded += model.ok(); };
  const auto retry_ms = [&] { return base::ReasonMetadata(few.Wait("third", "", then).status())["retry_ms"]; };
  gate_.Shut("cold");
  ASSERT_TRUE(few.Wait("cold", "", then).ok());
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  clock.Advance(absl::Seconds(7));
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return loaded == 1; }));
  gate_.Shut("frozen");
  ASSERT_TRUE(few.Wait("frozen", "", then).ok());
  EXPECT_EQ(retry_ms(), "7000");
  clock.Advance(absl::Seconds(6));
  EXPECT_EQ(retry_ms(), "7000");
  clock.Advance(absl::Seconds(6));
  EXPECT_EQ(retry_ms(), "12000");
  gate_.Open();
  EXPECT_TRUE(Soon([&] { return loaded == 2; }));
}

TEST_F(ModelLoadsTest, StoppingServerStopsTheRunningLoad) {
  gate_.Shut("cold");
  const auto asked = Begin("cold");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(1));
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_FALSE(asked->status.get().ok());
  EXPECT_TRUE(Soon([&] { return environment_.live_calls.count() == 0; }));
  loads_->Stop();  // returns although the gate is shut
  EXPECT_FALSE(manager_->IsLoaded("cold"));
}

// A call may ask for a load when the server has already stopped all loads.
TEST_F(ModelLoadsTest, NoCallWaitsAfterAStop) {
  gate_.Shut("cold");
  const auto asked = Begin("cold");
  EXPECT_TRUE(gate_.AwaitBegun("cold"));
  EXPECT_TRUE(AwaitWaiting(1));
  loads_->Stop();
  EXPECT_EQ(asked->status.get().error_code(), grpc::StatusCode::CANCELLED) << "the waiting call gets an error";
  EXPECT_EQ(loads_->num_waiting(), 0u);
  loads_->Stop();
  std::atomic<int> notified = 0;
  const absl::Status refused = loads_->Wait("cold", "", [&](const serve::ModelLoads::Loaded&) { ++notified; }).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "DRAINING");
  const grpc::Status late = Generate("cold");
  EXPECT_EQ(late.error_code(), grpc::StatusCode::UNAVAILABLE) << late.error_message();
  EXPECT_EQ(InfoOf(late).reason(), "DRAINING");
  EXPECT_TRUE(Generate("warm").ok()) << "it needs no load";
  workers_.AwaitIdle();
  EXPECT_EQ(notified, 0);
  EXPECT_EQ(gate_.begun("cold"), 1);
}

}  // namespace
}  // namespace nibble::rpc
