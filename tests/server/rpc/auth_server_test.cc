// Calls every method of the server on every transport without a token, with a wrong one and with the right one
// (docs/faults.md, S1-S3, S12, C4). The methods come from the table of rules; authority_test.cc shows that it has all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/auth/method_rules.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/token_line.h"
#include "tests/support/certificates.h"
#include "tests/support/soon.h"

namespace nibble {
namespace {

using base::StrCat;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::AppTest;
using testing_support::TokenLine;

enum class Over { kTls, kLocal, kInsecure };

class AuthServerTest : public AppTest, public ::testing::WithParamInterface<Over> {
 protected:
  void WriteFiles() {
    std::ofstream(directory_ + "/tokens")
        << TokenLine("viewer", "viewer") << TokenLine("infer", "infer") << TokenLine("train", "train")
        << TokenLine("operator", "operator") << TokenLine("admin", "admin")
        << TokenLine("old", "admin", R"(, "expires": "2020-01-01T00:00:00Z")")
        << R"({"name": "by-certificate", "role": "viewer", "san": "uri:spiffe://tests/viewer"})" << "\n";
    if (GetParam() != Over::kTls) return;
    testing::MakeAuthority(directory_ + "/ca");
    testing::MakeCertificate(directory_ + "/server", directory_ + "/ca", "DNS:localhost,IP:127.0.0.1");
    testing::MakeCertificate(directory_ + "/client", directory_ + "/ca", "URI:spiffe://tests/viewer");
  }
  AppOptions Options() override {
    WriteFiles();
    AppOptions options = AppTest::Options();
    options.security.token_file = directory_ + "/tokens";
    if (GetParam() == Over::kTls) {
      options.security.tls_cert = directory_ + "/server.crt";
      options.security.tls_key = directory_ + "/server.key";
      options.security.tls_client_ca = directory_ + "/ca.crt";
    } else if (GetParam() == Over::kInsecure) {
      options.grpc_address = "0.0.0.0:0";
      options.security.insecure = true;
    } else {
      options.security.reflection = true;
    }
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    if (app_ == nullptr) return;
    plain_ = channel_ = Channel("");
  }
  // `certificate` is the prefix of the client's files; "": the client has no certificate.
  std::shared_ptr<grpc::Channel> Channel(const std::string& certificate) {
    const std::string address = StrCat(GetParam() == Over::kTls ? "localhost:" : "127.0.0.1:", app_->grpc_port());
    grpc::ChannelArguments alone;  // no connection shared with another channel
    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (GetParam() != Over::kTls) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), alone);
    grpc::SslCredentialsOptions options{testing::FileText(directory_ + "/ca.crt"), "", ""};
    if (!certificate.empty()) {
      options.pem_private_key = testing::FileText(directory_ + "/" + certificate + ".key");
      options.pem_cert_chain = testing::FileText(directory_ + "/" + certificate + ".crt");
    }
    return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), alone);
  }

  // Calls the method with one empty message; returns the status.
  grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                   const std::multimap<std::string, std::string>& metadata) {
    // A watch does not end, so one message is read; for the other methods the second read finds the end.
    const int reads = method.find("Watch") == std::string::npos ? 2 : 1;
    return testing_support::Ask(channel, {.method = method, .metadata = metadata, .max_reads = reads}).status;
  }
  grpc::Status AskAs(const std::string& name, const std::string& method) {
    return Ask(plain_, method, {{"authorization", "Bearer token-" + name}});
  }

  std::shared_ptr<grpc::Channel> plain_;
};

// Whether this server has the rule's method on this transport: reflection is turned on only for kLocal, and health is
// off with --insecure, where the server could not check a token for it.
bool IsServed(const auth::MethodRule& rule, Over over) {
  if (rule.access == auth::Access::kReflection) return over == Over::kLocal;
  if (rule.access == auth::Access::kHealth) return over != Over::kInsecure;
  return true;
}

TEST_P(AuthServerTest, S1NoMethodAnswersWithoutAValidToken) {
  const std::vector<std::pair<std::multimap<std::string, std::string>, std::string>> callers = {
      {{}, "TOKEN_MISSING"},
      {{{"authorization", "Bearer wrong"}}, "TOKEN_INVALID"},
      {{{"authorization", "Bearer token-old"}}, "TOKEN_INVALID"},
      {{{"authorization", "Bearer token-admin"}, {"authorization", "Bearer token-admin"}}, "TOKEN_INVALID"},
      {{{"x-token", "Bearer token-admin"}, {"token", "token-admin"}}, "TOKEN_MISSING"}};
  int asked = 0;
  for (const auto& [metadata, reason] : callers) {
    std::vector<std::string> methods = {"nibble.v1.NoSuchService/Method", "nibble.v1.ModelService/NoSuch", "x"};
    for (const auth::MethodRule& rule : auth::MethodRules()) methods.emplace_back(rule.method);
    for (const std::string& method : methods) {
      const grpc::Status status = Ask(plain_, method, metadata);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method << " " << status.error_message();
      // A refusal by a handler's wrapper has details; an earlier refusal has its reason before the text.
      const std::string said =
          status.error_details().empty() ? status.error_message() : testing_support::ReasonOf(status);
      EXPECT_THAT(said, StartsWith(reason)) << method;
      EXPECT_THAT(status.error_message(), Not(HasSubstr("token-admin")));
      ++asked;
    }
  }
  EXPECT_GE(asked, 5 * 55);
  // A token in the path does not count.
  EXPECT_EQ(Ask(plain_, "nibble.v1.ModelService/ListModels?access_token=token-admin", {}).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  const auto http = Scrape();
  EXPECT_THAT(http, HasSubstr("nibble_auth_failures_total{reason=\"TOKEN_MISSING\"}"));
  EXPECT_THAT(http, Not(HasSubstr("token-")));
  // With --insecure, the wrappers of the handlers refuse the calls, and count them; S1RefusedCallsHaveNoEffect tests
  // that these calls change nothing.
  if (GetParam() == Over::kInsecure) return;
  // Where gRPC itself checks the token, no handler was reached.
  std::istringstream lines(http);
  int methods = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("grpc_server_started_total{", 0) != 0) continue;
    EXPECT_THAT(line, ::testing::EndsWith(" 0"));
    ++methods;
  }
  EXPECT_GT(methods, 40);
}

// Calls with visible effects.
class AuthEffectTest : public AuthServerTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AuthServerTest::Options();
    options.trainer_path = "/bin/false";  // a job only needs to be queued
    return options;
  }
  // Calls with one message and this bearer token; "": without a token.
  grpc::Status Send(const std::string& token, const std::string& method, const google::protobuf::Message& request,
                    google::protobuf::Message* response = nullptr) {
    testing_support::RawCall call{.method = method, .request = request.SerializeAsString(), .max_reads = 1000};
    if (!token.empty()) call.metadata.emplace("authorization", "Bearer " + token);
    const testing_support::RawAnswer answer = testing_support::Ask(plain_, call);
    if (response != nullptr) {
      EXPECT_TRUE(answer.status.ok()) << method << ": " << answer.status.error_message();
      EXPECT_TRUE(response->ParseFromString(answer.bytes)) << method;
    }
    return answer.status;
  }
  grpc::Status UploadAs(const std::string& token, const std::string& name) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::Dataset dataset;
    const auto stub = v1::DatasetService::NewStub(plain_);
    auto writer = stub->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    message.mutable_header()->set_name(name);
    writer->Write(message);
    message.set_chunk(testing_support::kTinyTexts);
    writer->Write(message);
    message.mutable_finish()->set_sha256(base::Sha256Hex(testing_support::kTinyTexts));
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  // The datasets, and counts of everything that the calls below change.
  std::string Effects() {
    v1::ListDatasetsResponse datasets;
    Send("token-admin", "nibble.v1.DatasetService/ListDatasets", v1::ListDatasetsRequest(), &datasets);
    v1::ListJobsResponse jobs;
    Send("token-admin", "nibble.v1.FineTuneService/ListJobs", v1::ListJobsRequest(), &jobs);
    v1::ServerLoad load;
    Send("token-admin", "nibble.v1.ServerService/GetLoad", v1::GetLoadRequest(), &load);
    std::vector<std::string> names;
    for (const v1::Dataset& dataset : datasets.datasets()) names.push_back(dataset.name());
    std::sort(names.begin(), names.end());
    std::string line;
    for (const std::string& name : names) line += name + " ";
    return StrCat(line, "| jobs ", jobs.jobs_size(), " | loaded ", load.residents().models_size(), " | answered ",
                  load.requests_total(), " | draining ", load.draining() ? 1 : 0);
  }
};

// Each call (an upload, CreateJob, LoadModel, GenerateStream, DeleteDataset, Drain) changes something for a permitted
// caller, and must change nothing for others.
TEST_P(AuthEffectTest, S1RefusedCallsHaveNoEffect) {
  v1::ImportModelRequest import;
  import.set_server_path("hf_tied_bf16");
  import.set_name("tiny");
  google::longrunning::Operation operation;
  Send("token-admin", "nibble.v1.ModelService/ImportModel", import, &operation);
  google::longrunning::WaitOperationRequest wait;
  wait.set_name(operation.name());
  Send("token-admin", "google.longrunning.Operations/WaitOperation", wait, &operation);
  ASSERT_TRUE(operation.has_response()) << operation.error().message();
  for (const char* name : {"texts", "spare"}) {
    const grpc::Status uploaded = UploadAs("token-train", name);
    ASSERT_TRUE(uploaded.ok()) << uploaded.error_message();
  }

  v1::LoadModelRequest load;
  load.set_name("tiny");
  v1::GenerateStreamRequest generate;
  *generate.mutable_request() = Prompt("tiny", "a b", 4);
  v1::DeleteDatasetRequest remove;
  remove.set_name("spare");
  const auto try_all = [&](const std::string& token) {
    return std::vector<grpc::Status>{UploadAs(token, "more"),
                                     Send(token, "nibble.v1.FineTuneService/CreateJob", testing_support::TinyJob()),
                                     Send(token, "nibble.v1.ModelService/LoadModel", load),
                                     Send(token, "nibble.v1.InferenceService/GenerateStream", generate),
                                     Send(token, "nibble.v1.DatasetService/DeleteDataset", remove)};
  };
  const auto drain = [&](const std::string& token) {
    return Send(token, "nibble.v1.ServerService/Drain", v1::DrainRequest());
  };
  const std::string before = "spare texts | jobs 0 | loaded 0 | answered 0 | draining 0";
  ASSERT_EQ(Effects(), before);
  for (const std::string token : {"", "wrong", "token-old"}) {
    for (const grpc::Status& status : try_all(token)) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << token << ": " << status.error_message();
    }
    EXPECT_EQ(drain(token).error_code(), grpc::StatusCode::UNAUTHENTICATED) << token;
    EXPECT_EQ(Effects(), before) << token;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));

  for (const grpc::Status& status : try_all("token-admin")) EXPECT_TRUE(status.ok()) << status.error_message();
  // The load is an operation, which may still run.
  EXPECT_TRUE(testing_support::Soon([&] { return Effects().find("loaded 1") != std::string::npos; }));
  EXPECT_EQ(Effects(), "more texts | jobs 1 | loaded 1 | answered 1 | draining 0");
  EXPECT_TRUE(drain("token-admin").ok());
  v1::ServerLoad after;
  Send("token-admin", "nibble.v1.ServerService/GetLoad", v1::GetLoadRequest(), &after);
  EXPECT_TRUE(after.draining());
}

TEST_P(AuthServerTest, S2EveryRoleMayCallExactlyItsMethods) {
  const char* const names[] = {"viewer", "infer", "train", "operator", "admin"};
  std::vector<auth::MethodRule> rules(auth::MethodRules().begin(), auth::MethodRules().end());
  // Drain last: while the server drains, most services refuse every call.
  std::stable_partition(rules.begin(), rules.end(),
                        [](const auth::MethodRule& rule) { return !rule.method.ends_with("/Drain"); });
  for (const auth::MethodRule& rule : rules) {
    for (int role = 0; role < 5; ++role) {
      const grpc::Status status = AskAs(names[role], std::string(rule.method));
      const bool may = rule.access != auth::Access::kTrainer && role >= static_cast<int>(rule.role);
      if (!IsServed(rule, GetParam())) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << rule.method;
      } else if (may) {
        EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << rule.method;
        EXPECT_NE(testing_support::ReasonOf(status), "DRAINING") << rule.method;
        // A method itself may refuse a path of the server.
        if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
          EXPECT_EQ(testing_support::ReasonOf(status), "IMPORT_ROOT");
        }
      } else {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << rule.method << " " << names[role];
        EXPECT_THAT(status.error_details().empty() ? status.error_message() : testing_support::ReasonOf(status),
                    StartsWith("ROLE"));
      }
    }
  }
  EXPECT_EQ(AskAs("admin", "nibble.v1.NoSuchService/Method").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_P(AuthServerTest, SocketOfTrainersRefusesOtherMethodsAndUnknownAttempts) {
  struct stat info{};
  const std::string socket = directory_ + "/state/trainers.sock";
  ASSERT_EQ(stat(socket.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto trainers = grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials());
  for (const auth::MethodRule& rule : auth::MethodRules()) {
    if (rule.access == auth::Access::kTrainer) continue;
    EXPECT_EQ(Ask(trainers, std::string(rule.method), {{"authorization", "Bearer token-admin"}}).error_code(),
              grpc::StatusCode::PERMISSION_DENIED)
        << rule.method;
  }
  // The service requires the secret of the attempt.
  const auto stub = internal::v1::TrainerReportService::NewStub(trainers);
  grpc::ClientContext context;
  const auto stream = stub->Report(&context);
  internal::v1::ReportRequest hello;
  hello.mutable_hello()->set_job_id("job-none");
  hello.mutable_hello()->set_token("guess");
  stream->Write(hello);
  internal::v1::ReportResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_P(AuthServerTest, WithdrawnTokenIsSoonRefused) {
  EXPECT_TRUE(AskAs("admin", "nibble.v1.ModelService/ListModels").ok());
  const std::string path = directory_ + "/tokens";
  std::ofstream(path + ".new") << TokenLine("viewer", "viewer");
  std::filesystem::rename(path + ".new", path);
  grpc::Status status;
  EXPECT_TRUE(testing_support::Soon([&] {
    status = AskAs("admin", "nibble.v1.ModelService/ListModels");
    return !status.ok();
  }));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(AskAs("viewer", "nibble.v1.ModelService/ListModels").ok());
}

TEST_P(AuthServerTest, NameInACertificateGivesARole) {
  if (GetParam() != Over::kTls) GTEST_SKIP() << "only TLS has certificates";
  const auto channel = Channel("client");
  EXPECT_TRUE(Ask(channel, "nibble.v1.ModelService/ListModels", {}).ok());
  EXPECT_EQ(Ask(channel, "nibble.v1.FineTuneService/CreateJob", {}).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Ask(channel, "nibble.v1.ModelService/ListModels", {{"authorization", "Bearer wrong"}}).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_P(AuthServerTest, RefusalsAndCallsAreLoggedWithTheirPeer) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(AskAs("nobody", "nibble.v1.ModelService/ListModels").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(AskAs("viewer", "nibble.v1.FineTuneService/CreateJob").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(AskAs("train", "nibble.v1.FineTuneService/CreateJob").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::istringstream log(::testing::internal::GetCapturedStderr());
  constexpr char kAddress[] = "ipv4:127.0.0.1:";
  // Where gRPC itself checks the token, it gives no address: the log has "local", or "unknown" with TLS.
  const std::string of_refusals = GetParam() == Over::kTls     ? "unknown"
                                  : GetParam() == Over::kLocal ? "local"
                                                               : kAddress;
  int refused = 0, answered = 0;
  for (std::string text; std::getline(log, text);) {
    if (!text.starts_with("{")) continue;  // a line of gRPC: only main() sends these to our log
    const auto line = base::ParseJson(text);
    ASSERT_TRUE(line.ok()) << text;
    if ((*line)["message"] == "refused") {
      EXPECT_THAT((*line)["peer"].get<std::string>(), StartsWith(of_refusals));
      ++refused;
    } else if ((*line)["message"] == "rpc" && (*line)["principal"] == "train") {
      EXPECT_THAT((*line)["peer"].get<std::string>(), AnyOf(StartsWith(kAddress), StartsWith("ipv6:")));
      EXPECT_EQ((*line)["code"], "INVALID_ARGUMENT");
      ++answered;
    }
  }
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(answered, 1);
}

// C4: Generate, GenerateStream and CreateJob check the priority.
TEST_P(AuthEffectTest, C4PrioritiesAboveZeroNeedTheRoleOperator) {
  const auto expect_role = [](const grpc::Status& status, const std::string& field) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    EXPECT_EQ(testing_support::ReasonOf(status), "ROLE");
    EXPECT_THAT(status.error_message(), HasSubstr(field + ": is 7"));
  };
  v1::GenerateRequest generate = Prompt("none", "a", 1);
  generate.set_priority(7);
  expect_role(Send("token-infer", "nibble.v1.InferenceService/Generate", generate), "priority");
  expect_role(Send("token-train", "nibble.v1.InferenceService/Generate", generate), "priority");
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = generate;
  expect_role(Send("token-infer", "nibble.v1.InferenceService/GenerateStream", stream), "priority");
  v1::CreateJobRequest job = testing_support::TinyJob();
  job.mutable_spec()->mutable_run()->set_priority(7);
  expect_role(Send("token-train", "nibble.v1.FineTuneService/CreateJob", job), "run.priority");
  // These priorities are permitted: the errors are only about the missing model and dataset.
  EXPECT_EQ(Send("token-operator", "nibble.v1.InferenceService/Generate", generate).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Send("token-operator", "nibble.v1.FineTuneService/CreateJob", job).error_code(),
            grpc::StatusCode::NOT_FOUND);
  generate.set_priority(-7);
  EXPECT_EQ(Send("token-infer", "nibble.v1.InferenceService/Generate", generate).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

std::string TransportName(const ::testing::TestParamInfo<Over>& info) {
  return info.param == Over::kTls ? "Tls" : info.param == Over::kLocal ? "Local" : "Insecure";
}
INSTANTIATE_TEST_SUITE_P(Transports, AuthServerTest, ::testing::Values(Over::kTls, Over::kLocal, Over::kInsecure),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(Transports, AuthEffectTest, ::testing::Values(Over::kTls, Over::kLocal, Over::kInsecure),
                         TransportName);

class BindTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / "nibble_bind_XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    testing::MakeAuthority(directory_ + "/ca");
    testing::MakeCertificate(directory_ + "/server", directory_ + "/ca", "DNS:localhost");
    testing::MakeCertificate(directory_ + "/other", directory_ + "/ca", "DNS:localhost");
    std::ofstream(directory_ + "/tokens") << TokenLine("admin", "admin");
    options_.state_dir = directory_ + "/state";
    options_.http_address = "127.0.0.1:0";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  // Returns "" if the server starts, else its error.
  std::string Start(const std::string& address) {
    options_.grpc_address = address;
    const auto app = App::Start(options_);
    return app.ok() ? "" : std::string(app.status().message());
  }

  std::string directory_;
  AppOptions options_;
};

TEST_F(BindTest, S3WithoutTlsAndTokensOnlyLoopbackIsServed) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "10.1.2.3:50051", "example.org:50051"}) {
    EXPECT_THAT(Start(address), HasSubstr("is not a loopback address")) << address;
    options_.security.token_file = directory_ + "/tokens";
    EXPECT_THAT(Start(address), HasSubstr("is not a loopback address")) << address;  // tokens in plaintext
    options_.security.token_file.clear();
    options_.security.tls_cert = directory_ + "/server.crt";
    options_.security.tls_key = directory_ + "/server.key";
    EXPECT_THAT(Start(address), HasSubstr("is not a loopback address")) << address;  // TLS without tokens
    options_.security.tls_cert.clear();
    options_.security.tls_key.clear();
  }
  EXPECT_FALSE(std::filesystem::exists(options_.state_dir));  // refused before anything was touched
  EXPECT_EQ(Start("127.0.0.1:0"), "");
  EXPECT_EQ(Start("localhost:0"), "");
  options_.security.token_file = directory_ + "/tokens";
  options_.security.tls_cert = directory_ + "/server.crt";
  options_.security.tls_key = directory_ + "/server.key";
  EXPECT_EQ(Start("0.0.0.0:0"), "");
  options_.security = {};
  options_.security.insecure = true;
  EXPECT_EQ(Start("0.0.0.0:0"), "");
}

TEST_F(BindTest, InconsistentFlagsAreNamed) {
  auto& s = options_.security;
  const auto start = [&] { return Start("127.0.0.1:0"); };
  s.tls_cert = directory_ + "/server.crt";
  EXPECT_THAT(start(), HasSubstr("--tls_key"));
  s.tls_key = directory_ + "/other.key";
  EXPECT_THAT(start(), HasSubstr("is not the key of --tls_cert"));
  s.tls_key = directory_ + "/none.key";
  EXPECT_THAT(start(), StartsWith("--tls_key"));
  s.tls_key = directory_ + "/server.key";
  s.tls_require_client_cert = true;
  EXPECT_THAT(start(), HasSubstr("--tls_client_ca"));
  s.tls_client_ca = directory_ + "/tokens";
  EXPECT_THAT(start(), HasSubstr("--tls_client_ca"));
  s = {};
  s.tls_client_ca = directory_ + "/ca.crt";
  EXPECT_THAT(start(), HasSubstr("--tls_client_ca"));
  s = {};
  s.token_file = directory_ + "/none";
  EXPECT_THAT(start(), StartsWith("--token_file"));
  s.token_file = directory_ + "/tokens";
  options_.state_dir = directory_ + "/" + std::string(90, 'x');  // too long for the path of the trainers' socket
  EXPECT_THAT(start(), StartsWith("--state_dir"));
}

// S12 (docs/faults.md)
class AuthReflectionTest : public AppTest {};
TEST_F(AuthReflectionTest, S12ReflectionIsOffByDefault) {
  const grpc::Status status =
      testing_support::Ask(channel_, {.method = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"})
          .status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace nibble
