// A table of operations with its service.
#pragma once
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/operations_service.h"
#include "tests/server/operations/operation_table_fixture.h"

namespace nibble::rpc {

namespace longrunning = google::longrunning;

inline google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  return info;
}
inline google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  return InfoOf(details);
}

class OperationsTest : public operations::OperationTableTest {
 protected:
  using Stub = longrunning::Operations::Stub;

  OperationsTest() : OperationTableTest(Packed(ModelM())) {}
  void SetUp() override {
    OperationTableTest::SetUp();
    service_ = std::make_unique<OperationsService>(environment_, *table_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = longrunning::Operations::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    service_.reset();
    table_.reset();  // before the environment of the calls
  }
  static v1::Model ModelM() {
    v1::Model model;
    model.set_name("m");
    return model;
  }
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return ((*stub_).*method)(&context, request, response);
  }
  // Get, Wait, Cancel and Delete call the service.
  longrunning::Operation Get(const std::string& name) {
    longrunning::GetOperationRequest request;
    request.set_name(name);
    longrunning::Operation operation;
    const grpc::Status status = Ask(&Stub::GetOperation, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  longrunning::Operation Wait(const std::string& name) {
    longrunning::WaitOperationRequest request;
    request.set_name(name);
    longrunning::Operation operation;
    const grpc::Status status = Ask(&Stub::WaitOperation, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  grpc::Status Cancel(const std::string& name) {
    longrunning::CancelOperationRequest request;
    request.set_name(name);
    google::protobuf::Empty none;
    return Ask(&Stub::CancelOperation, request, &none);
  }
  grpc::Status Delete(const std::string& name) {
    longrunning::DeleteOperationRequest request;
    request.set_name(name);
    google::protobuf::Empty none;
    return Ask(&Stub::DeleteOperation, request, &none);
  }

  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  std::unique_ptr<OperationsService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace nibble::rpc
