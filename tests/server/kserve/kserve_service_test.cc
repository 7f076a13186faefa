// The service in a whole server, beside the gRPC API.
#include "server/kserve/kserve_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "server/base/strings.h"
#include "server/kserve/infer_stream.h"
#include "tests/server/kserve/infer_message.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/token_line.h"
#include "tests/support/soon.h"

namespace nibble::kserve {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelStreamInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::AddBool;
using testing_support::InferRequest;
using testing_support::ReasonOf;
using testing_support::Soon;
using testing_support::TextsOf;

class KServeServiceTest : public testing_support::AppTest {
 protected:
  using Stream = grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>;

  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.kserve = true;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
    kserve_ = GRPCInferenceService::NewStub(channel_);
  }

  // Calls a method with a request that has this name of a model, in the field "name".
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (GRPCInferenceService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    return Call(kserve_, method, request, response);
  }
  bool IsReady(const std::string& name) {
    grpc::ClientContext context;
    inference::ModelReadyRequest request;
    request.set_name(name);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(kserve_->ModelReady(&context, request, &response).ok());
    return response.ready();
  }
  v1::ServerLoad Load() {
    grpc::ClientContext context;
    v1::ServerLoad load;
    EXPECT_TRUE(server_->GetLoad(&context, {}, &load).ok());
    return load;
  }
  // Value of nibble_client_requests_total.
  int Requests(const std::string& protocol) {
    const std::string text = Scrape();
    const std::string series = base::StrCat("nibble_client_requests_total{protocol=\"", protocol, "\"} ");
    const std::size_t at = text.find(series);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + series.size()));
  }
  // The text of nibble.v1 for greedy decoding.
  std::string Greedy(const std::string& prompt, int tokens) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    EXPECT_TRUE(inference_->Generate(&context, Prompt("tiny", prompt, tokens), &response).ok());
    return response.outputs(0).text();
  }
  ModelInferRequest Streamed(const std::string& prompt, const std::string& id, int tokens) {
    ModelInferRequest request = InferRequest(
        "tiny", prompt, base::StrCat(R"({"temperature": 0, "ignore_eos": true, "max_tokens": )", tokens, "}"));
    AddBool(request, "stream");
    request.set_id(id);
    return request;
  }

  std::unique_ptr<GRPCInferenceService::Stub> kserve_;
};

TEST_F(KServeServiceTest, DescribesServerAndModels) {
  grpc::ClientContext live_context, ready_context;
  inference::ServerLiveResponse live;
  ASSERT_TRUE(kserve_->ServerLive(&live_context, {}, &live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  ASSERT_TRUE(kserve_->ServerReady(&ready_context, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ServerMetadata, inference::ServerMetadataRequest(), &server).ok());
  EXPECT_EQ(server.name(), "triton");
  inference::ModelMetadataRequest metadata_of;
  metadata_of.set_name("tiny");
  inference::ModelMetadataResponse metadata;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ModelMetadata, metadata_of, &metadata).ok());
  EXPECT_EQ(metadata.name(), "tiny");
  EXPECT_EQ(metadata.inputs(0).name(), "text_input");
  inference::ModelConfigRequest config_of;
  config_of.set_name("tiny");
  config_of.set_version("1");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ModelConfig, config_of, &config).ok());
  EXPECT_TRUE(config.config().model_transaction_policy().decoupled());
  EXPECT_EQ(config.config().max_batch_size(), 0);
  EXPECT_EQ(config.config().parameters().at("format").string_value(), "BF16");
  config_of.set_version("2");
  EXPECT_EQ(Ask(&GRPCInferenceService::Stub::ModelConfig, config_of, &config).error_code(), grpc::NOT_FOUND);
  config_of.set_version("");
  config_of.set_name("none");
  EXPECT_EQ(ReasonOf(Ask(&GRPCInferenceService::Stub::ModelConfig, config_of, &config)), "MODEL");
}

TEST_F(KServeServiceTest, LoadsUnloadsAndListsModels) {
  EXPECT_FALSE(IsReady("tiny"));
  EXPECT_FALSE(IsReady("none")) << "an unknown model is not an error";
  inference::RepositoryModelLoadRequest load;
  inference::RepositoryModelLoadResponse loaded;
  load.set_model_name("tiny");
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &loaded).ok());
  EXPECT_TRUE(IsReady("tiny"));
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &loaded).ok()) << "a second load is no error";
  const auto states = [&](bool ready) {
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    inference::RepositoryIndexResponse index;
    EXPECT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryIndex, request, &index).ok());
    std::vector<std::string> found;
    for (const auto& model : index.models()) found.push_back(model.name() + " " + model.state() + model.reason());
    return found;
  };
  Import("other");
  EXPECT_THAT(states(false), ElementsAre("other UNAVAILABLEunloaded", "tiny READY"));
  EXPECT_THAT(states(true), ElementsAre("tiny READY"));
  inference::RepositoryModelUnloadRequest unload;
  inference::RepositoryModelUnloadResponse unloaded;
  unload.set_model_name("tiny");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(false);
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryModelUnload, unload, &unloaded).ok());
  EXPECT_FALSE(IsReady("tiny"));
  EXPECT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryModelUnload, unload, &unloaded).ok());
  unload.set_model_name("none");
  EXPECT_EQ(ReasonOf(Ask(&GRPCInferenceService::Stub::RepositoryModelUnload, unload, &unloaded)), "MODEL");
  (*load.mutable_parameters())["config"].set_string_param("{}");
  EXPECT_EQ(testing_support::FieldOf(Ask(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &loaded)),
            "parameters.config");
}

TEST_F(KServeServiceTest, InferGivesTheTextOfGenerateAndCountsIt) {
  ModelInferRequest request =
      InferRequest("tiny", "a b c", R"({"temperature": 0, "max_tokens": 6, "ignore_eos": true})");
  request.set_id("x1");
  AddBool(request, "exclude_input_in_output");
  AddBool(request, "return_num_output_tokens");
  inference::ModelInferResponse response;
  const grpc::Status status = Ask(&GRPCInferenceService::Stub::ModelInfer, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.id(), "x1");
  EXPECT_THAT(TextsOf(response, "text_output"), ElementsAre(Greedy("a b c", 6)));
  EXPECT_EQ(testing_support::NumberOf<std::uint32_t>(response, "num_output_tokens"), 6u);
  inference::ModelStatisticsRequest of;
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ModelStatistics, of, &statistics).ok());
  ASSERT_EQ(statistics.model_stats_size(), 1);
  EXPECT_EQ(statistics.model_stats(0).name(), "tiny");
  EXPECT_EQ(statistics.model_stats(0).inference_count(), 1u);
  EXPECT_GT(statistics.model_stats(0).inference_stats().compute_infer().ns(), 0u);
  request.mutable_inputs(0)->set_shape(0, 2);
  const grpc::Status refused = Ask(&GRPCInferenceService::Stub::ModelInfer, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(testing_support::FieldOf(refused), "text_input");
}

TEST_F(KServeServiceTest, ErrorsOfGenerateHaveTheClientsNames) {
  inference::ModelInferResponse response;
  const auto ask = [&](const std::string& model, const std::string& text, const std::string& sampling) {
    return Ask(&GRPCInferenceService::Stub::ModelInfer, InferRequest(model, text, sampling), &response);
  };
  grpc::Status status = ask("tiny", "a", R"({"top_p": 2})");
  EXPECT_EQ(status.error_message(), "sampling_parameters.top_p: is 2, wanted above 0, at most 1");
  EXPECT_EQ(testing_support::FieldOf(status), "sampling_parameters.top_p");
  status = ask("none", "a", "");
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(ReasonOf(status), "MODEL");
  std::string long_text;
  for (int i = 0; i < 3000; ++i) long_text += "a b ";
  status = ask("tiny", long_text, "");
  EXPECT_EQ(ReasonOf(status), "PROMPT_TOO_LONG");
  EXPECT_THAT(status.error_message(), ::testing::StartsWith("text_input: "));
}

TEST_F(KServeServiceTest, StreamAnswersSeveralRequestsAndTheirErrors) {
  grpc::ClientContext context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  ModelInferRequest with_empty = Streamed("a b", "empty", 5);
  (*with_empty.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ModelInferRequest wrong = Streamed("a b", "wrong", 5);
  wrong.mutable_inputs(0)->set_datatype("FP32");
  ModelInferRequest unknown = Streamed("a b", "unknown", 5);
  unknown.set_model_name("none");
  ModelInferRequest whole = InferRequest("tiny", "c", R"({"temperature": 0, "max_tokens": 4, "ignore_eos": true})");
  whole.set_id("whole");
  for (const auto& request : {Streamed("a b c", "plain", 6), with_empty, wrong, unknown, whole})
    ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  std::map<std::string, std::string> texts, errors;
  std::map<std::string, int> finals, after_final;
  std::set<std::string> without_tensors;
  for (ModelStreamInferResponse message; stream->Read(&message);) {
    const auto& response = message.infer_response();
    const std::string& id = response.id();
    if (finals[id] > 0) ++after_final[id];
    finals[id] += response.parameters().at("triton_final_response").bool_param();
    if (!message.error_message().empty()) {
      errors[id] = message.error_message();
    } else if (response.outputs().empty()) {
      without_tensors.insert(id);
    } else {
      texts[id] += TextsOf(response, "text_output").at(0);
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(texts, (std::map<std::string, std::string>{
                       {"plain", Greedy("a b c", 6)}, {"empty", Greedy("a b", 5)}, {"whole", "c" + Greedy("c", 4)}}));
  EXPECT_EQ(errors, (std::map<std::string, std::string>{
                        {"wrong", "FIELD_VIOLATION: text_input: has the datatype \"FP32\", wanted BYTES"},
                        {"unknown", "MODEL: there is no model named \"none\""}}));
  EXPECT_THAT(without_tensors, ElementsAre("empty"));
  EXPECT_EQ(finals,
            (std::map<std::string, int>{{"plain", 1}, {"empty", 1}, {"whole", 1}, {"wrong", 1}, {"unknown", 1}}));
  EXPECT_TRUE(after_final.empty());
}

TEST_F(KServeServiceTest, EachRequestCountsOnceAndForKServeOnly) {
  const int grpc = Requests("grpc"), kserve = Requests("kserve");
  inference::ModelInferResponse whole;
  ASSERT_TRUE(
      Ask(&GRPCInferenceService::Stub::ModelInfer, InferRequest("tiny", "a", R"({"max_tokens": 1})"), &whole).ok());
  grpc::ClientContext context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  for (const char* id : {"1", "2"}) ASSERT_TRUE(stream->Write(Streamed("a b", id, 2)));
  stream->WritesDone();
  for (ModelStreamInferResponse message; stream->Read(&message);) EXPECT_EQ(message.error_message(), "");
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(Requests("kserve"), kserve + 3) << "one call, and two requests in a stream";
  EXPECT_EQ(Requests("grpc"), grpc) << "the calls inside the process do not count";
  Load();
  EXPECT_EQ(Requests("grpc"), grpc + 1);
  EXPECT_EQ(Requests("kserve"), kserve + 3);
  EXPECT_EQ(Requests("openai"), 0);
}

TEST_F(KServeServiceTest, FirstErrorEndsTheStreamIfTheClientAsksForThat) {
  grpc::ClientContext context;
  context.AddMetadata("triton_grpc_error", "true");
  const auto stream = kserve_->ModelStreamInfer(&context);
  ModelInferRequest unknown = Streamed("a", "1", 5);
  unknown.set_model_name("none");
  ASSERT_TRUE(stream->Write(unknown));
  ModelStreamInferResponse message;
  EXPECT_FALSE(stream->Read(&message));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(ReasonOf(status), "MODEL");
}

TEST_F(KServeServiceTest, ClientThatGoesAwayFreesTheSlotsOfItsStream) {
  {
    grpc::ClientContext context;
    const auto stream = kserve_->ModelStreamInfer(&context);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(Streamed("a b", std::to_string(i), 200)));
    ModelStreamInferResponse message;
    ASSERT_TRUE(stream->Read(&message));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(Soon([&] { return Load().requests_running() + Load().requests_waiting() == 0; }));
  EXPECT_EQ(Load().kv_blocks_used(), 0);
  EXPECT_LT(Load().generated_tokens_total(), 3 * 200) << "the requests had ended by themselves";
}

TEST_F(KServeServiceTest, MoreRequestsThanMayRunAreAllAnswered) {
  constexpr int kRequests = 3 * static_cast<int>(InferStream::kMaxRunning);
  grpc::ClientContext context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) stream->Write(Streamed("a", std::to_string(i), 1));
    stream->WritesDone();
  });
  int finals = 0;
  std::map<std::string, int> errors;
  for (ModelStreamInferResponse message; stream->Read(&message);) {
    finals += message.infer_response().parameters().at("triton_final_response").bool_param();
    if (!message.error_message().empty()) ++errors[message.error_message()];
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(finals, kRequests);
  EXPECT_TRUE(errors.empty()) << errors.begin()->first;
}

// Writes of errors end while the last request, whose JSON is large, is accepted. The end of the client's requests comes
// with it.
TEST_F(KServeServiceTest, LastRequestIsAnsweredIfAWriteEndsWhileItIsAccepted) {
  ModelInferRequest wrong = Streamed("a", "wrong", 1);
  wrong.mutable_inputs(0)->set_datatype("FP32");
  std::string array = "[1";
  for (int i = 0; i < 30'000; ++i) array += ",1";
  ModelInferRequest last = InferRequest("tiny", "a", array + "]");
  last.set_id("last");
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    const auto stream = kserve_->ModelStreamInfer(&context);
    for (int error = 0; error < 8; ++error) ASSERT_TRUE(stream->Write(wrong));
    stream->WriteLast(last, {});
    std::vector<std::string> ids;
    for (ModelStreamInferResponse message; stream->Read(&message);) ids.push_back(message.infer_response().id());
    ASSERT_TRUE(stream->Finish().ok());
    ASSERT_EQ(ids.size(), 9u) << i;
    ASSERT_EQ(ids.back(), "last") << i;
  }
}

TEST_F(KServeServiceTest, DrainEndsAnIdleStreamAndAnswersProbes) {
  grpc::ClientContext context, drain_context, ready_context, live_context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(Streamed("a", "1", 1)));
  ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  while (!message.infer_response().parameters().at("triton_final_response").bool_param())
    ASSERT_TRUE(stream->Read(&message));
  v1::DrainResponse drained;
  ASSERT_TRUE(server_->Drain(&drain_context, {}, &drained).ok());
  EXPECT_FALSE(stream->Read(&message));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(kserve_->ServerReady(&ready_context, {}, &ready).ok());
  EXPECT_FALSE(ready.ready());
  inference::ServerLiveResponse live;
  EXPECT_TRUE(kserve_->ServerLive(&live_context, {}, &live).ok());
  EXPECT_TRUE(live.live());
  grpc::ClientContext late;
  const auto refused = kserve_->ModelStreamInfer(&late);
  EXPECT_FALSE(refused->Read(&message));
  EXPECT_EQ(ReasonOf(refused->Finish()), "DRAINING");
}

TEST_F(KServeServiceTest, MethodsThatAreNotServedAreRefusedByName) {
  for (const std::string method :
       {"inference.GRPCInferenceService/SystemSharedMemoryStatus",
        "inference.GRPCInferenceService/SystemSharedMemoryRegister",
        "inference.GRPCInferenceService/SystemSharedMemoryUnregister",
        "inference.GRPCInferenceService/CudaSharedMemoryStatus",
        "inference.GRPCInferenceService/CudaSharedMemoryRegister",
        "inference.GRPCInferenceService/CudaSharedMemoryUnregister", "inference.GRPCInferenceService/TraceSetting",
        "inference.GRPCInferenceService/LogSettings"}) {
    const grpc::Status status = testing_support::Ask(channel_, {.method = method}).status;
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr(method));
    EXPECT_EQ(ReasonOf(status), "UNIMPLEMENTED");
  }
}

// A short time limit for slow readers.
class SlowKServeClientTest : public KServeServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = KServeServiceTest::Options();
    options.stream_buffer = 64;
    options.slow_reader_s = 0.3;
    options.engine.kv_tokens = 8192;
    return options;
  }
  // Without these settings, the transport's window may grow until it takes a whole answer.
  void SetUp() override {
    KServeServiceTest::SetUp();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
    kserve_ = GRPCInferenceService::NewStub(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(app_->grpc_port()),
                                                                      grpc::InsecureChannelCredentials(), arguments));
  }
  // Whether a stream has ended, at the server, with this code.
  bool StreamEndedWith(const std::string& code) {
    return absl::StrContains(Scrape(), base::StrCat("grpc_code=\"", code, "\",grpc_method=\"ModelStreamInfer\""));
  }
  ModelInferRequest Large() {
    ModelInferRequest request =
        InferRequest("tiny", "a b c", R"({"n": 16, "logprobs": 20, "max_tokens": 240, "ignore_eos": true})");
    AddBool(request, "stream");
    AddBool(request, "return_logprobs");
    return request;
  }
};

TEST_F(SlowKServeClientTest, ClientThatTakesNothingLosesItsStreamAndFreesItsSlots) {
  grpc::ClientContext context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(stream->Write(Large()));
  EXPECT_TRUE(Soon([&] { return Load().requests_total() == 2; }));
  EXPECT_LT(Load().generated_tokens_total(), 2 * 16 * 240) << "the requests had ended by themselves";
  EXPECT_EQ(Load().kv_blocks_used(), 0);
  // The client reads no status either, so the call is cut.
  EXPECT_TRUE(Soon([&] { return StreamEndedWith("RESOURCE_EXHAUSTED"); }));
  ModelStreamInferResponse message;
  while (stream->Read(&message)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(SlowKServeClientTest, ClientThatReadsGetsEverything) {
  grpc::ClientContext context;
  const auto stream = kserve_->ModelStreamInfer(&context);
  ModelInferRequest request = Large();
  AddBool(request, "return_num_output_tokens");
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  std::size_t tokens = 0;
  int finals = 0;
  for (ModelStreamInferResponse message; stream->Read(&message);) {
    ASSERT_EQ(message.error_message(), "");
    finals += message.infer_response().parameters().at("triton_final_response").bool_param();
    const std::string raw = testing_support::RawOutput(message.infer_response(), "num_output_tokens");
    for (std::size_t at = 0; at < raw.size(); at += 4) tokens += static_cast<unsigned char>(raw[at]);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(tokens, 16u * 240u);
  EXPECT_EQ(finals, 1);
}

class KServeRolesTest : public KServeServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = KServeServiceTest::Options();
    options.security.token_file = directory_ + "/tokens";
    std::ofstream(options.security.token_file)
        << testing_support::TokenLine("viewer", "viewer") << testing_support::TokenLine("infer", "infer")
        << testing_support::TokenLine("train", "train");
    options.security.health_without_token = true;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();  // NOLINT(bugprone-parent-virtual-call): the parent imports a model without a token
    // The local credentials of the server want those of the client.
    Use(grpc::CreateChannel("127.0.0.1:" + std::to_string(app_->grpc_port()),
                            grpc::experimental::LocalCredentials(LOCAL_TCP)));
    kserve_ = GRPCInferenceService::NewStub(channel_);
    grpc::ClientContext context, wait;
    context.AddMetadata("authorization", "Bearer token-train");
    wait.AddMetadata("authorization", "Bearer token-train");
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name("tiny");
    google::longrunning::Operation operation, done;
    ASSERT_TRUE(models_->ImportModel(&context, request, &operation).ok());
    google::longrunning::WaitOperationRequest of;
    of.set_name(operation.name());
    ASSERT_TRUE(operations_->WaitOperation(&wait, of, &done).ok());
    ASSERT_TRUE(done.has_response());
  }
  template <typename Request, typename Response>
  grpc::StatusCode AskAs(const std::string& who,
                         grpc::Status (GRPCInferenceService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                            Response*),
                         const Request& request) {
    grpc::ClientContext context;
    if (!who.empty()) context.AddMetadata("authorization", "Bearer token-" + who);
    Response response;
    return ((*kserve_).*method)(&context, request, &response).error_code();
  }
};

TEST_F(KServeRolesTest, CallsHaveTheRightsOfTheirToken) {
  const ModelInferRequest infer = InferRequest("tiny", "a");
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("tiny");
  EXPECT_EQ(AskAs("", &GRPCInferenceService::Stub::ServerLive, inference::ServerLiveRequest()), grpc::OK);
  EXPECT_EQ(AskAs("", &GRPCInferenceService::Stub::ServerReady, inference::ServerReadyRequest()), grpc::OK);
  EXPECT_EQ(AskAs("", &GRPCInferenceService::Stub::ModelInfer, infer), grpc::UNAUTHENTICATED);
  EXPECT_EQ(AskAs("viewer", &GRPCInferenceService::Stub::ModelInfer, infer), grpc::PERMISSION_DENIED);
  EXPECT_EQ(AskAs("infer", &GRPCInferenceService::Stub::ModelInfer, infer), grpc::OK);
  EXPECT_EQ(AskAs("infer", &GRPCInferenceService::Stub::RepositoryModelLoad, load), grpc::PERMISSION_DENIED);
  EXPECT_EQ(AskAs("train", &GRPCInferenceService::Stub::RepositoryModelLoad, load), grpc::OK);
  EXPECT_EQ(AskAs("viewer", &GRPCInferenceService::Stub::RepositoryIndex, inference::RepositoryIndexRequest()),
            grpc::OK);
}

}  // namespace
}  // namespace nibble::kserve
