// The listener of --report_address: it takes reports of trainers that prove themselves by their attempt's token, and
// nothing else. The "trainer" only sleeps and writes no journal, so events can only come from the stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/auth/method_rules.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/jobs/attempt.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/token_line.h"
#include "tests/support/certificates.h"
#include "tests/support/soon.h"

namespace nibble {
namespace {

namespace iv1 = internal::v1;
using base::StrCat;
using testing_support::AppTest;
using testing_support::ReasonOf;

enum class Over { kTls, kLocal, kInsecure };

class NetworkReportsTest : public AppTest, public ::testing::WithParamInterface<Over> {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.trainer_path = directory_ + "/trainer";
    std::ofstream(options.trainer_path) << "#!/bin/sh\nexec /bin/sleep 600\n";
    std::filesystem::permissions(options.trainer_path, std::filesystem::perms::owner_all);
    std::ofstream(directory_ + "/tokens") << testing_support::TokenLine("admin", "admin");
    options.security.token_file = directory_ + "/tokens";
    options.security.reflection = options.security.health_without_token = true;
    options.security.reflection_without_token = true;
    options.report.address = "127.0.0.1:0";
    if (GetParam() == Over::kTls) {
      testing::MakeAuthority(directory_ + "/ca");
      testing::MakeCertificate(directory_ + "/server", directory_ + "/ca", "DNS:localhost");
      options.security.tls_cert = directory_ + "/server.crt";
      options.security.tls_key = directory_ + "/server.key";
      options.security.tls_client_ca = options.report.ca = directory_ + "/ca.crt";
      options.security.tls_require_client_cert = false;
      options.report.target = "localhost:1";  // not dialled here: the runner is local
    } else if (GetParam() == Over::kInsecure) {
      options.security.insecure = true;
      options.report = {.address = "0.0.0.0:0", .target = "localhost:1", .ca = ""};
    }
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    ASSERT_NE(app_, nullptr);
    Use(Channel(app_->grpc_port()));
    reports_ = Channel(app_->report_port());
    trainers_ = iv1::TrainerReportService::NewStub(reports_);
  }
  std::shared_ptr<grpc::Channel> Channel(int port) const {
    if (GetParam() != Over::kTls) {
      return grpc::CreateChannel(StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    }
    const grpc::SslCredentialsOptions tls{testing::FileText(directory_ + "/ca.crt"), "", ""};
    return grpc::CreateChannel(StrCat("localhost:", port), grpc::SslCredentials(tls));
  }
  template <typename Method, typename Request, typename Response>
  void CallAsAdmin(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer token-admin");
    const grpc::Status status = method(context, request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // Creates a job, whose trainer sleeps, and reads the order of its first attempt into order_.
  void StartJob() {
    google::longrunning::Operation operation;
    v1::ImportModelRequest import;
    import.set_server_path("hf_tied_bf16");
    import.set_name("tiny");
    CallAsAdmin([&](auto& c, auto& q, auto* r) { return models_->ImportModel(&c, q, r); }, import, &operation);
    google::longrunning::WaitOperationRequest wait;
    wait.set_name(operation.name());
    CallAsAdmin([&](auto& c, auto& q, auto* r) { return operations_->WaitOperation(&c, q, r); }, wait, &operation);
    v1::Dataset dataset;
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer token-admin");
    const auto writer = datasets_->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    message.mutable_header()->set_name("texts");
    writer->Write(message);
    message.set_chunk(testing_support::kTinyTexts);
    writer->Write(message);
    message.mutable_finish()->set_sha256(base::Sha256Hex(testing_support::kTinyTexts));
    writer->Write(message);
    writer->WritesDone();
    ASSERT_TRUE(writer->Finish().ok());
    CallAsAdmin([&](auto& c, auto& q, auto* r) { return jobs_->CreateJob(&c, q, r); }, testing_support::TinyJob(),
                &job_);
    const std::string attempt = StrCat(directory_, "/state/jobs/", job_.name(), "/attempts/1");
    ASSERT_TRUE(testing_support::Soon([&] {
      auto order = jobs::ReadAttemptOrder(base::RealFileSystem(), attempt);
      if (order.ok()) order_ = *std::move(order);
      return !order_.token.empty();
    }));
  }
  static iv1::ReportRequest Hello(const std::string& job, const std::string& token) {
    iv1::ReportRequest request;
    request.mutable_hello()->set_job_id(job);
    request.mutable_hello()->set_attempt(1);
    request.mutable_hello()->set_token(token);
    return request;
  }
  // The status of a stream whose first message is `first`.
  grpc::Status Refusal(const std::shared_ptr<grpc::Channel>& channel, const iv1::ReportRequest& first) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stub = iv1::TrainerReportService::NewStub(channel);
    const auto stream = stub->Report(&context);
    stream->Write(first);
    iv1::ReportResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish();
  }

  std::shared_ptr<grpc::Channel> reports_;
  std::unique_ptr<iv1::TrainerReportService::Stub> trainers_;
  v1::Job job_;
  jobs::AttemptOrder order_;
};

TEST_P(NetworkReportsTest, RefusesEveryOtherMethod) {
  const auto wanted = GetParam() == Over::kInsecure ? grpc::UNIMPLEMENTED : grpc::PERMISSION_DENIED;
  int asked = 0;
  for (const auth::MethodRule& rule : auth::MethodRules()) {
    if (rule.access == auth::Access::kTrainer) continue;
    const testing_support::RawCall call = {.method = std::string(rule.method),
                                           .metadata = {{"authorization", "Bearer token-admin"}}};
    EXPECT_EQ(testing_support::Ask(reports_, call).status.error_code(), wanted) << rule.method;
    ++asked;
  }
  EXPECT_EQ(asked, static_cast<int>(auth::MethodRules().size()) - 1) << "every method but Report";
  const testing_support::RawCall report = {.method = "nibble.internal.v1.TrainerReportService/Report",
                                           .metadata = {{"authorization", "Bearer token-admin"}}};
  EXPECT_EQ(testing_support::Ask(channel_, report).status.error_code(), grpc::PERMISSION_DENIED)
      << "the public port takes no reports";
}

TEST_P(NetworkReportsTest, TakesReportsOnlyWithTheTokenOfTheAttempt) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  EXPECT_THAT(order_.report_address, ::testing::StartsWith("unix:")) << "a local trainer keeps its socket";
  EXPECT_EQ(order_.report_ca, "");
  EXPECT_EQ(ReasonOf(Refusal(reports_, Hello("job-none", order_.token))), "JOB");
  EXPECT_EQ(ReasonOf(Refusal(reports_, Hello(job_.name(), "guess"))), "TOKEN_INVALID");
  EXPECT_EQ(ReasonOf(Refusal(reports_, Hello(job_.name(), ""))), "TOKEN_INVALID");
  iv1::ReportRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(testing_support::FieldOf(Refusal(reports_, heartbeat)), "hello");

  grpc::ClientContext context;
  const auto stream = trainers_->Report(&context);
  iv1::ReportResponse response;
  const auto send = [&](const iv1::ReportRequest& request) {
    EXPECT_TRUE(stream->Write(request) && stream->Read(&response)) << request.DebugString();
  };
  send(Hello(job_.name(), order_.token));
  iv1::ReportRequest line;
  line.mutable_line()->set_json(R"({"sequence":1,"time":"2026-01-02T03:04:05Z","type":"log","message":"by network"})");
  send(line);
  EXPECT_EQ(response.acknowledged_sequence(), 1);
  send(heartbeat);
  EXPECT_EQ(response.acknowledged_sequence(), 1);
  EXPECT_EQ(response.command(), iv1::TRAINER_COMMAND_UNSPECIFIED);
  v1::CheckpointJobRequest checkpoint;
  checkpoint.set_name(job_.name());
  CallAsAdmin([&](auto& c, auto& q, auto* r) { return jobs_->CheckpointJob(&c, q, r); }, checkpoint, &job_);
  send(heartbeat);
  EXPECT_EQ(response.command(), iv1::TRAINER_COMMAND_CHECKPOINT);
  EXPECT_NE(response.checkpoint_request(), "");
  v1::CancelJobRequest cancel;
  cancel.set_name(job_.name());
  CallAsAdmin([&](auto& c, auto& q, auto* r) { return jobs_->CancelJob(&c, q, r); }, cancel, &job_);
  // The trainer may already have ended at SIGTERM; then its attempt is over.
  if (stream->Write(heartbeat) && stream->Read(&response)) {
    EXPECT_EQ(response.command(), iv1::TRAINER_COMMAND_CANCEL);
    EXPECT_EQ(response.checkpoint_request(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, NetworkReportsTest, ::testing::Values(Over::kTls, Over::kLocal, Over::kInsecure),
                         [](const auto& info) {
                           return info.param == Over::kTls ? "tls" : info.param == Over::kLocal ? "local" : "insecure";
                         });

}  // namespace
}  // namespace nibble
