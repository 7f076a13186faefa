// Checks errors as a client sees them over the wire, for tests of docs/errors.md.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "server/base/strings.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/status_details.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/token_line.h"
#include "tests/support/soon.h"

namespace nibble {

using base::StrCat;
using ::testing::HasSubstr;
using testing_support::AppTest;
using testing_support::Find;
using testing_support::kTinyTexts;
using testing_support::TinyJob;
using testing_support::TokenLine;

class ErrorDetailsTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.trainer_path = "/bin/false";  // starts, fails, is retried
    options.engine.kv_tokens = 256;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
  }
  // Checks what every error has: its code and text also in its details, one ErrorInfo of the domain "nibble", and the
  // further details that its code requires.
  google::rpc::Status Check(const grpc::Status& status, grpc::StatusCode code, const std::string& reason,
                            bool of_operation = false) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    const google::rpc::Status details = testing_support::Details(status);
    EXPECT_EQ(details.code(), code);
    EXPECT_EQ(details.message(), status.error_message());
    int infos = 0;
    for (const auto& detail : details.details()) infos += detail.Is<google::rpc::ErrorInfo>();
    EXPECT_EQ(infos, 1) << status.error_message();
    const auto info = Find<google::rpc::ErrorInfo>(details).value_or(google::rpc::ErrorInfo());
    EXPECT_EQ(info.reason(), reason) << status.error_message();
    EXPECT_EQ(info.domain(), "nibble");
    const bool retryable = code == grpc::StatusCode::UNAVAILABLE || reason == "QUEUE_FULL" || reason == "TENANT_QUOTA";
    EXPECT_EQ(Find<google::rpc::RetryInfo>(details).has_value(), retryable) << reason;
    EXPECT_EQ(Find<google::rpc::QuotaFailure>(details).has_value(), code == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << reason;
    const auto failure = Find<google::rpc::PreconditionFailure>(details);
    EXPECT_EQ(failure.has_value(), code == grpc::StatusCode::FAILED_PRECONDITION) << reason;
    if (failure.has_value()) {
      EXPECT_EQ(failure->violations(0).type(), reason);
      EXPECT_FALSE(failure->violations(0).subject().empty()) << reason;
      EXPECT_FALSE(failure->violations(0).description().empty()) << reason;
    }
    const bool named = code == grpc::StatusCode::NOT_FOUND || code == grpc::StatusCode::ALREADY_EXISTS;
    EXPECT_EQ(Find<google::rpc::ResourceInfo>(details).has_value(), named) << reason;
    // An operation is logged under its own name, not under a call's id.
    const bool ours = (code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::DATA_LOSS) && !of_operation;
    EXPECT_EQ(Find<google::rpc::RequestInfo>(details).has_value(), ours) << reason;
    return details;
  }
  static std::string Metadata(const google::rpc::Status& details, const std::string& key) {
    const auto info = Find<google::rpc::ErrorInfo>(details).value_or(google::rpc::ErrorInfo());
    const auto it = info.metadata().find(key);
    return it == info.metadata().end() ? "(none)" : it->second;
  }
  // The resource that is missing or taken, such as "model tiny".
  static std::string Resource(const google::rpc::Status& details) {
    const auto resource = Find<google::rpc::ResourceInfo>(details).value_or(google::rpc::ResourceInfo());
    return StrCat(resource.resource_type(), " ", resource.resource_name());
  }
  // The object whose state is wrong.
  static std::string Subject(const google::rpc::Status& details) {
    const auto failure = Find<google::rpc::PreconditionFailure>(details).value_or(google::rpc::PreconditionFailure());
    return failure.violations_size() == 1 ? failure.violations(0).subject() : "(none)";
  }
  static std::string Fields(const google::rpc::Status& details) {
    std::string joined;
    const auto bad = Find<google::rpc::BadRequest>(details).value_or(google::rpc::BadRequest());
    for (const auto& violation : bad.field_violations()) joined += (joined.empty() ? "" : " ") + violation.field();
    return joined;
  }
  grpc::Status Generate(const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    return Call(inference_, &v1::InferenceService::Stub::Generate, request, &response);
  }
  grpc::Status Create(const v1::CreateJobRequest& request, v1::Job* job) {
    return Call(jobs_, &v1::FineTuneService::Stub::CreateJob, request, job);
  }
  // The error of a job that was accepted and whose plan then failed. CreateJob would return the same error if it read
  // the rows itself.
  grpc::Status ErrorOfPlan(const v1::CreateJobRequest& request) {
    v1::Job job;
    const grpc::Status created = Create(request, &job);
    EXPECT_TRUE(created.ok()) << created.error_message();
    v1::GetJobRequest get;
    get.set_name(job.name());
    EXPECT_TRUE(testing_support::Soon([&] {
      const grpc::Status got = Call(jobs_, &v1::FineTuneService::Stub::GetJob, get, &job);
      EXPECT_TRUE(got.ok()) << got.error_message();
      return job.state() != v1::JOB_STATE_PLANNING;
    }));
    EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
    return grpc::Status(static_cast<grpc::StatusCode>(job.error().code()), job.error().message(),
                        job.error().SerializeAsString());
  }
  void UploadTexts() { Upload("texts", kTinyTexts); }
  // Begins the import of a path below the import root.
  google::longrunning::Operation Begin(const std::string& path, const std::string& name) {
    v1::ImportModelRequest request;
    request.set_server_path(path);
    request.set_name(name);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  // Imports a path below the import root under the same name.
  void ImportFrom(const std::string& path) {
    const auto done = Wait(Begin(path, path));
    ASSERT_TRUE(done.has_response()) << done.error().message();
  }
  google::longrunning::Operation ConvertTiny(const std::string& name) {
    v1::ConvertModelRequest request;
    request.set_model("tiny");
    request.set_name(name);
    request.set_target(v1::MODEL_FORMAT_INT8);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ConvertModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  }
  // `file`: a path below the folder of models.
  void FlipLastByte(const std::string& file) {
    const std::string path = directory_ + "/state/models/" + file;
    std::string bytes = model::ReadBytes(path);
    ASSERT_FALSE(bytes.empty());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    model::WriteBytes(path, bytes);
  }
  int VerifyFailures() {
    const std::string text = Scrape();
    constexpr char kCounter[] = "\nnibble_artifact_verify_failures_total ";
    const std::size_t at = text.find(kCounter);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + sizeof kCounter - 1));
  }
};

}  // namespace nibble
