#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/health_check_service_interface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/http_get.h"
#include "server/base/strings.h"
#include "server/rpc/methods.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/raw_call.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing_support::AppTest;
using testing_support::ReasonOf;

class ServerServiceTest : public AppTest {
 protected:
  client::HttpReply Get(const std::string& path) {
    auto reply = client::HttpGet(base::StrCat("127.0.0.1:", app_->http_port()), path, absl::Minutes(1));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *std::move(reply) : client::HttpReply();
  }
  // Calls a method by name, with an empty request.
  grpc::Status CallEmpty(const std::string& method) {
    return testing_support::Ask(channel_, {.method = method}).status;
  }
  // grpc.health.v1.HealthCheckRequest{service}, by hand: Debian has no library with its messages.
  std::string Health(const std::string& service, grpc::Status* status) {
    std::string bytes;
    if (!service.empty()) bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
    const testing_support::RawAnswer answer =
        testing_support::Ask(channel_, {.method = "grpc.health.v1.Health/Check", .request = bytes});
    *status = answer.status;
    return answer.bytes;
  }
};

TEST_F(ServerServiceTest, InfoListsDevicesFormatsAndLimits) {
  v1::ServerInfo info;
  grpc::ClientContext context;
  ASSERT_TRUE(server_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.version().empty());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).device().kind(), v1::DEVICE_KIND_CPU);
  EXPECT_EQ(info.threads(), 2);
  EXPECT_EQ(info.runner(), "local");
  EXPECT_EQ(info.kubernetes_namespace() + info.kubernetes_queue(), "");
  EXPECT_GT(info.unimplemented_size(), 5);
  EXPECT_THAT(info.serve_formats(), testing::Contains("ternary"));
  EXPECT_THAT(info.convert_formats(), testing::ElementsAre("int8", "ternary", "nf4", "bf16"));
  EXPECT_THAT(info.export_formats(), testing::ElementsAre("peft", "hf", "hf_bitnet", "compressed_tensors"));
  EXPECT_EQ(info.limits().max_chunk_bytes(), 1 << 20);
  EXPECT_EQ(info.limits().max_dataset_line_bytes(), 1 << 20);
  EXPECT_EQ(info.limits().max_tokenizer_bytes(), 64 << 20);
  EXPECT_EQ(info.limits().max_stream_age().seconds(), 3600);
  EXPECT_EQ(info.limits().max_jobs_per_principal(), 10);
  EXPECT_FALSE(info.limits().has_generate_deadline());
  EXPECT_FALSE(info.limits().has_operation_deadline());
  EXPECT_THAT(info.code_digest(), testing::MatchesRegex("[0-9a-f]{64}"));
  EXPECT_THAT(info.cuda_version(), testing::MatchesRegex("none|[0-9.]+"));
  const std::string metrics = Get("/metrics").body;
  const std::string built =
      base::StrCat("nibble_build_info{code=\"", info.code_digest(), "\",cuda=\"", info.cuda_version(), "\",revision=\"",
                   info.commit(), "\",torch=\"none\",version=\"", info.version(), "\"} 1\n");
  EXPECT_TRUE(metrics.find(built) != std::string::npos) << built;  // does not print all metrics
}

// Methods that are listed as not implemented are refused by name.
TEST_F(ServerServiceTest, EveryUnimplementedMethodIsRefusedByName) {
  int methods = 0;
  for (const std::string name : rpc::kUnimplemented) {
    if (name.find('/') == std::string::npos) continue;  // a field
    const grpc::Status status = CallEmpty(name);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
    EXPECT_EQ(ReasonOf(status), "UNIMPLEMENTED") << name;
    ++methods;
  }
  EXPECT_GT(methods, 0);
}

// No unary method crashes on an empty request, and every error has its reason. WaitOperation is not called.
TEST_F(ServerServiceTest, EveryMethodAnswersAnEmptyRequest) {
  std::vector<std::string> methods;
  for (const char* service_name : rpc::kServices) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service_name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      if (method->client_streaming() || method->server_streaming() || method->name() == "WaitOperation") continue;
      methods.push_back(base::StrCat(service_name, "/", std::string(method->name())));
    }
  }
  // Drain last: while the server drains, most services refuse every call.
  std::stable_partition(methods.begin(), methods.end(),
                        [](const std::string& method) { return !method.ends_with("/Drain"); });
  ASSERT_TRUE(methods.back().ends_with("/Drain"));
  for (const std::string& method : methods) {
    const grpc::Status status = CallEmpty(method);
    EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << method << ": " << status.error_message();
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNKNOWN) << method << ": " << status.error_message();
    if (status.ok()) continue;
    EXPECT_NE(ReasonOf(status), "") << method;
    EXPECT_NE(ReasonOf(status), "DRAINING") << method;
  }
}

TEST_F(ServerServiceTest, WatchLoadSendsAtOnceAndAgainUntilTheClientEndsIt) {
  v1::WatchLoadRequest request;
  request.mutable_interval()->set_nanos(100'000'000);
  grpc::ClientContext context;
  auto reader = server_->WatchLoad(&context, request);
  v1::ServerLoad first, next;
  ASSERT_TRUE(reader->Read(&first));
  ASSERT_TRUE(reader->Read(&next));
  EXPECT_TRUE(first.ready());
  EXPECT_GT(first.rss_bytes(), 0);
  EXPECT_LT(std::make_pair(first.time().seconds(), first.time().nanos()),
            std::make_pair(next.time().seconds(), next.time().nanos()));
  context.TryCancel();
  while (reader->Read(&next)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  request.mutable_interval()->set_nanos(99'000'000);
  grpc::ClientContext hasty;
  reader = server_->WatchLoad(&hasty, request);
  EXPECT_FALSE(reader->Read(&next));
  EXPECT_EQ(testing_support::FieldOf(reader->Finish()), "interval");
}

TEST_F(ServerServiceTest, AWatchOfTheLoadEndsWithTheServer) {
  grpc::ClientContext context;
  v1::WatchLoadRequest request;
  request.mutable_interval()->set_seconds(3600);
  auto reader = server_->WatchLoad(&context, request);
  v1::ServerLoad load;
  ASSERT_TRUE(reader->Read(&load));
  app_.reset();
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Reflection is off by default, because it tells anyone which methods to try.
TEST_F(ServerServiceTest, ReflectionIsOffByDefault) {
  EXPECT_EQ(CallEmpty("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

class ReflectionTest : public ServerServiceTest {
  AppOptions Options() override {
    AppOptions options = ServerServiceTest::Options();
    options.security.reflection = true;
    return options;
  }
};

TEST_F(ReflectionTest, ReflectionIsServedWhenEnabled) {
  EXPECT_NE(CallEmpty("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServerServiceTest, HealthKnowsTheServices) {
  grpc::Status status;
  for (const std::string service : {"", "nibble.v1.ModelService", "nibble.v1.InferenceService"}) {
    EXPECT_EQ(Health(service, &status), std::string("\x08\x01")) << service;  // SERVING
    EXPECT_TRUE(status.ok());
  }
  Health("nibble.v1.Nothing", &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerServiceTest, ProbesAndMetricsAnswer) {
  for (const char* path : {"/livez", "/readyz", "/startupz"}) EXPECT_EQ(Get(path).status, 200) << path;
  Import("tiny");
  v1::GenerateResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(inference_->Generate(&context, Prompt("tiny", "a b", 4), &response).ok());
  const std::string text = Get("/metrics").body;
  // Does not print all metrics when it fails.
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("nibble_generated_tokens_total{model=\"tiny\"} 4\n"));
  EXPECT_TRUE(has("nibble_generate_requests_total{model=\"tiny\",result=\"length\"} 1\n"));
  EXPECT_TRUE(
      has("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Generate\","
          "grpc_service=\"nibble.v1.InferenceService\",grpc_type=\"unary\"} 1\n"));
  EXPECT_TRUE(has("nibble_jobs{method=\"qlora\",state=\"QUEUED\"} 0\n"));
  EXPECT_TRUE(has("nibble_kernel_launches_total{device=\"cpu\",kernel=\"quantize_nf4\",phase=\"serve\"} 0\n"));
  EXPECT_TRUE(has("nibble_disk_free_bytes{volume=\"state\"}"));
}

TEST_F(ServerServiceTest, StateDirectoryHoldsThePortsAndIsLocked) {
  std::ifstream file(directory_ + "/state/server.json");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(std::to_string(app_->grpc_port())));
  EXPECT_THAT(text.str(), HasSubstr(std::to_string(app_->http_port())));
  const auto second = App::Start(Options());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServerServiceTest, ServesWithoutRoomForTheFileOfItsPorts) {  // R8
  app_.reset();
  const std::filesystem::path ports_file = directory_ + "/state/server.json";
  std::ofstream(ports_file) << "{}";  // of a server that was killed
  std::filesystem::create_symlink("/dev/full", ports_file.string() + ".tmp");
  StartApp();
  ASSERT_NE(app_, nullptr);
  v1::ServerInfo info;
  EXPECT_TRUE(Call(server_, &v1::ServerService::Stub::GetServerInfo, {}, &info).ok());
  EXPECT_FALSE(std::filesystem::exists(ports_file)) << "it would lead to the previous server";
}

TEST_F(ServerServiceTest, DrainRefusesNewCallsAsDraining) {
  v1::DrainRequest request;
  v1::DrainResponse response;
  request.mutable_deadline()->set_seconds(-1);
  {
    grpc::ClientContext context;
    EXPECT_EQ(testing_support::FieldOf(server_->Drain(&context, request, &response)), "deadline");
  }
  request.mutable_deadline()->set_seconds(5);
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    ASSERT_TRUE(server_->Drain(&context, request, &response).ok());
  }
  grpc::Status status;
  EXPECT_EQ(Health("", &status), std::string("\x08\x02"));  // NOT_SERVING
  v1::ListModelsResponse models;
  grpc::ClientContext context;
  const grpc::Status refused = models_->ListModels(&context, {}, &models);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  grpc::ClientContext context2;
  v1::WatchJobRequest watch;
  watch.set_name("job-x");
  auto reader = jobs_->WatchJob(&context2, watch);
  v1::JobEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(ReasonOf(reader->Finish()), "DRAINING");
  v1::ServerLoad load;
  grpc::ClientContext context3;
  ASSERT_TRUE(server_->GetLoad(&context3, {}, &load).ok()) << "the progress of the drain can still be read";
  EXPECT_TRUE(load.draining());
  EXPECT_FALSE(load.ready());
  EXPECT_EQ(Get("/readyz").status, 503);
  EXPECT_EQ(Get("/livez").status, 200);
  app_->Drain();
  app_.reset();
}

TEST_F(ServerServiceTest, DrainEndsAnIdleServerAtOnceAndItStartsAgain) {
  const auto began = std::chrono::steady_clock::now();
  app_->Drain();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  app_.reset();
  StartApp();
  v1::ServerInfo info;
  grpc::ClientContext context;
  EXPECT_TRUE(server_->GetServerInfo(&context, {}, &info).ok());
}

TEST(AppFlagsTest, BadFlagsAreRefusedByName) {
  const auto message = [](const std::function<void(AppOptions&)>& spoil) {
    AppOptions options;
    options.state_dir = testing::TempDir() + "/nibble_never_made";
    options.grpc_address = "127.0.0.1:0";
    options.http_address = "127.0.0.1:0";
    spoil(options);
    const auto app = App::Start(options);
    EXPECT_FALSE(app.ok());
    return app.ok() ? std::string() : std::string(app.status().message());
  };
  EXPECT_THAT(message([](AppOptions& o) { o.device = "cuda:0"; }),
              testing::AllOf(HasSubstr("\"cuda:0\" is not supported"), HasSubstr("serves and trains only on \"cpu\"")));
  EXPECT_THAT(message([](AppOptions& o) { o.device = "tpu"; }), HasSubstr("tpu"));
  EXPECT_THAT(message([](AppOptions& o) { o.isa = "sse"; }), HasSubstr("--isa"));
  EXPECT_THAT(message([](AppOptions& o) { o.grpc_address = "0.0.0.0:50051"; }), HasSubstr("loopback"));
  EXPECT_THAT(message([](AppOptions& o) { o.grpc_address = "nowhere"; }), HasSubstr("--grpc_address"));
  EXPECT_THAT(message([](AppOptions& o) { o.import_root = "/not/there"; }), HasSubstr("--import_root"));
}

}  // namespace
}  // namespace nibble
