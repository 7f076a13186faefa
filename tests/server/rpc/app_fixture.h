// A whole server in this process, on loopback ports of the system's choice. Import gives it a model of 2 layers.
#pragma once
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/http_get.h"
#include "google/longrunning/operations.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/dataset_service.grpc.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "nibble/v1/model_service.grpc.pb.h"
#include "nibble/v1/server_service.grpc.pb.h"
#include "server/app.h"
#include "server/base/sha256.h"

namespace nibble::testing_support {

inline google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status out;
  EXPECT_TRUE(out.ParseFromString(status.error_details())) << status.error_message();
  return out;
}

inline std::string ReasonOf(const google::rpc::Status& status) {
  for (const auto& detail : status.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}
inline std::string ReasonOf(const grpc::Status& status) { return ReasonOf(Details(status)); }

inline std::string FieldOf(const grpc::Status& status) {
  const google::rpc::Status details = Details(status);
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad;
    if (detail.UnpackTo(&bad) && bad.field_violations_size() > 0) return bad.field_violations(0).field();
  }
  return "";
}

class AppTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / "nibble_app_XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    StartApp();
  }
  void TearDown() override {
    app_.reset();
    std::filesystem::remove_all(directory_);
  }

  virtual AppOptions Options() {
    AppOptions options;
    options.state_dir = directory_ + "/state";
    options.grpc_address = "127.0.0.1:0";
    options.http_address = "127.0.0.1:0";
    options.import_root = NIBBLE_SOURCE_DIR "/tests/golden/model";
    options.threads = 2;
    options.min_free_bytes = 1 << 20;  // independent of the free space of the test machine
    options.engine.kv_tokens = 2048;
    return options;
  }
  void StartApp() {
    auto app = App::Start(Options());
    ASSERT_TRUE(app.ok()) << app.status();
    app_ = *std::move(app);
    Use(grpc::CreateChannel("127.0.0.1:" + std::to_string(app_->grpc_port()), grpc::InsecureChannelCredentials()));
  }
  void Use(std::shared_ptr<grpc::Channel> channel) {
    channel_ = std::move(channel);
    datasets_ = v1::DatasetService::NewStub(channel_);
    jobs_ = v1::FineTuneService::NewStub(channel_);
    models_ = v1::ModelService::NewStub(channel_);
    inference_ = v1::InferenceService::NewStub(channel_);
    server_ = v1::ServerService::NewStub(channel_);
    operations_ = google::longrunning::Operations::NewStub(channel_);
  }

  // Text of the metrics.
  std::string Scrape() {
    const auto answer = client::HttpGet("127.0.0.1:" + std::to_string(app_->http_port()), "/metrics", absl::Minutes(1));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->body : "";
  }

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (std::decay_t<decltype(*stub)>::*method)(grpc::ClientContext*, const Request&,
                                                                          Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return ((*stub).*method)(&context, request, response);
  }

  // Calls a method that begins an operation, and returns the result of the operation as if the method had answered it.
  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (std::decay_t<decltype(*stub)>::*method)(grpc::ClientContext*, const Request&,
                                                                          google::longrunning::Operation*),
                    const Request& request, Response* response)
    requires(!std::is_same_v<Response, google::longrunning::Operation>)
  {
    google::longrunning::Operation operation;
    const grpc::Status begun = Call(stub, method, request, &operation);
    if (!begun.ok()) return begun;
    const google::longrunning::Operation done = Wait(operation);
    if (done.has_error()) {
      return grpc::Status(static_cast<grpc::StatusCode>(done.error().code()), done.error().message(),
                          done.error().SerializeAsString());
    }
    EXPECT_TRUE(done.response().UnpackTo(response)) << done.response().type_url();
    return grpc::Status::OK;
  }

  google::longrunning::Operation Wait(const google::longrunning::Operation& operation) {
    google::longrunning::WaitOperationRequest request;
    request.set_name(operation.name());
    google::longrunning::Operation done;
    grpc::ClientContext context;
    const grpc::Status status = operations_->WaitOperation(&context, request, &done);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(done.done());
    return done;
  }

  // Imports the small model of tests/golden/model as bf16.
  void Import(const std::string& name) {
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name(name);
    google::longrunning::Operation operation;
    grpc::ClientContext context;
    const grpc::Status status = models_->ImportModel(&context, request, &operation);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const auto done = Wait(operation);
    ASSERT_TRUE(done.has_response()) << done.error().message();
  }

  // One upload: the header, one chunk unless `bytes` is empty, and the message that finishes it if `finish`.
  grpc::Status Upload(const v1::UploadDatasetHeader& header, const std::string& bytes, v1::Dataset* dataset,
                      bool finish = true) {
    grpc::ClientContext context;
    auto writer = datasets_->UploadDataset(&context, dataset);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = header;
    writer->Write(message);
    if (!bytes.empty()) {
      message.set_chunk(bytes);
      writer->Write(message);
    }
    message.mutable_finish()->set_sha256(base::Sha256Hex(bytes));
    if (finish) writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }

  // Uploads JSON lines, whose format the server detects.
  v1::Dataset Upload(const std::string& name, const std::string& rows) {
    v1::UploadDatasetHeader header;
    header.set_name(name);
    v1::Dataset dataset;
    const grpc::Status status = Upload(header, rows, &dataset);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return dataset;
  }

  v1::GenerateRequest Prompt(const std::string& model, const std::string& text, int max_tokens) {
    v1::GenerateRequest request;
    request.set_model(model);
    request.set_text(text);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }

  std::string directory_;
  std::unique_ptr<App> app_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::DatasetService::Stub> datasets_;
  std::unique_ptr<v1::FineTuneService::Stub> jobs_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::ServerService::Stub> server_;
  std::unique_ptr<google::longrunning::Operations::Stub> operations_;
};

}  // namespace nibble::testing_support
