// An InferenceService behind gRPC in this process, with one shared worker. The test gives Serve the functions that find
// and load its models.
#pragma once
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "server/rpc/inference_service.h"
#include "server/store/state_directory.h"
#include "tests/server/model/small_models.h"
#include "tests/server/rpc/status_details.h"
#include "tests/support/soon.h"

namespace nibble::testing_support {

inline google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  return Find<google::rpc::ErrorInfo>(details).value_or(google::rpc::ErrorInfo());
}

// A test opens the state, fills it, and calls Serve.
class InferenceFixture : public testing::Test {
 protected:
  void OpenState() {
    auto state = store::StateDirectory::Open(base::RealFileSystem(), models_.Path("state"));
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    texts_ = std::make_unique<registry::TextCache>(*state_->models);
  }
  void Serve(serve::ModelManager::Locate locate, serve::ModelLoads::Exists exists,
             const std::vector<grpc::Service*>& others = {}, int max_receive_bytes = 4 << 20) {
    serve::EngineOptions options;
    options.kv_tokens = 1024;
    manager_ = std::make_unique<serve::ModelManager>(std::move(locate), options, base::MemoryBudget::Make(0),
                                                     models_.stream(), base::RealClock(), nullptr);
    loads_ = std::make_unique<serve::ModelLoads>(*manager_, workers_, base::RealClock(), std::move(exists));
    service_ = std::make_unique<rpc::InferenceService>(environment_, *loads_, *texts_);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(max_receive_bytes);
    builder.RegisterService(service_.get());
    for (grpc::Service* other : others) builder.RegisterService(other);
    server_ = builder.BuildAndStart();
    inference_ = v1::InferenceService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    inference_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    loads_->Stop();
    environment_.text_workers.AwaitIdle();
    workers_.AwaitIdle();
    for (const auto& resident : manager_->residents()) manager_->Unload(resident->name).IgnoreError();
    while (environment_.live_answers > 0) std::this_thread::yield();
  }

  model::SmallModels models_;
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<registry::TextCache> texts_;
  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 64};
  rpc::CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  std::unique_ptr<serve::ModelManager> manager_;
  std::unique_ptr<serve::ModelLoads> loads_;
  std::unique_ptr<rpc::InferenceService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
};

}  // namespace nibble::testing_support
