// Work with whole models (import, conversion, verification) takes its memory from the memory for models, and is refused
// if that memory does not suffice. The tests call the server over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "server/base/sha256.h"
#include "server/model/artifact.h"
#include "tests/server/model/files.h"
#include "tests/server/model/peft_files.h"
#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing_support::AppTest;
using testing_support::ReasonOf;
namespace longrunning = google::longrunning;

// The tests change the memory for models between two starts of the server (docs/faults.md, C5).
class ModelMemoryTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.serve_memory_bytes = bytes_;
    if (!import_root_.empty()) options.import_root = import_root_;
    return options;
  }
  // Starts the server again with `bytes` of memory for models; 0: all that the machine has left. 2000 bytes are too few
  // for any work.
  void Restart(std::int64_t bytes) {
    app_.reset();
    bytes_ = bytes;
    StartApp();
  }
  longrunning::Operation Convert(v1::ModelFormat target, const std::string& name, const std::string& eval_dataset = "",
                                 int rank = 0) {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name(name);
    request.set_target(target);
    if (!eval_dataset.empty()) request.set_eval_dataset(eval_dataset);
    if (rank > 0) {  // an initial adapter
      request.mutable_adapter_init()->set_method(v1::ADAPTER_INIT_METHOD_LOFTQ);
      request.mutable_adapter_init()->set_name(name + "-adapter");
      request.mutable_adapter_init()->set_r(rank);
    }
    longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ConvertModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  }
  grpc::Status Verify(const std::string& name, v1::VerifyModelResponse* verified) {
    v1::VerifyModelRequest request;
    request.set_name(name);
    return Call(models_, &v1::ModelService::Stub::VerifyModel, request, verified);
  }
  // The needed and the available bytes that a refusal names.
  struct Refusal {
    std::int64_t need = 0, have = 0;
  };
  static Refusal RefusalOf(const google::rpc::Status& status) {
    EXPECT_EQ(status.code(), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED)) << status.message();
    EXPECT_EQ(ReasonOf(status), "OUT_OF_DEVICE_MEMORY") << status.message();
    Refusal refusal;
    for (const auto& detail : status.details()) {
      google::rpc::ErrorInfo info;
      if (!detail.UnpackTo(&info)) continue;
      refusal.need = std::stoll(info.metadata().at("need"));
      refusal.have = std::stoll(info.metadata().at("have"));
      EXPECT_THAT(info.metadata().at("plan"), HasSubstr("weights "));
    }
    return refusal;
  }
  longrunning::Operation ImportFrom(const v1::ImportModelRequest& request) {
    longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  }
  // An adapter of the model "base", at `directory_`/adapter, to be imported as "tuned".
  v1::ImportModelRequest WriteAdapter(float value) {
    const auto base_model = model::Artifact::Open(directory_ + "/state/models/base");
    EXPECT_TRUE(base_model.ok()) << base_model.status();
    model::AdapterConfig config;
    config.rank = 4;
    config.alpha = 16;
    config.targets = {model::LinearKind::kQ};
    const auto plan = model::AdapterTensors((*base_model)->config(), config);
    auto values = model::AdapterValues(plan);
    values[0][0] = value;
    model::WritePeftFiles(directory_ + "/adapter", model::ToPeftConfig(config), plan, values);
    import_root_ = directory_;
    v1::ImportModelRequest request;
    request.set_server_path("adapter");
    request.set_name("tuned");
    request.set_base_model("base");
    return request;
  }
  // Uploads the directory of a model; returns the id of the upload.
  std::string UploadModel(const std::string& directory) {
    grpc::ClientContext context;
    v1::UploadModelResponse response;
    const auto writer = models_->UploadModel(&context, &response);
    v1::UploadModelRequest message;
    message.mutable_header()->set_name("uploaded");
    writer->Write(message);
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      const std::string bytes = model::ReadBytes(file.path().string());
      message.mutable_file()->set_path(file.path().filename().string());
      message.mutable_file()->set_size_bytes(static_cast<std::int64_t>(bytes.size()));
      writer->Write(message);
      message.set_chunk(bytes);
      writer->Write(message);
      all += bytes;
    }
    message.mutable_finish()->set_sha256(base::Sha256Hex(all));
    writer->Write(message);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.upload_id();
  }
  grpc::Status Load(const std::string& name) {
    v1::LoadModelRequest request;
    request.set_name(name);
    v1::LoadModelResponse response;
    return Call(models_, &v1::ModelService::Stub::LoadModel, request, &response);
  }
  std::int64_t bytes_ = 0;
  std::string import_root_;
};

TEST_F(ModelMemoryTest, C5VerifyTakesItsMemoryFromThatOfModels) {
  Import("base");
  ASSERT_TRUE(Convert(v1::MODEL_FORMAT_INT8, "small").has_response());
  Restart(2000);
  v1::VerifyModelResponse verified;
  const Refusal never = RefusalOf(testing_support::Details(Verify("small", &verified)));
  EXPECT_EQ(never.have, 2000);
  EXPECT_GT(never.need, 2000);
  const Refusal load = RefusalOf(testing_support::Details(Load("small")));
  // There is memory for the load or for the verification, not for both.
  Restart(std::max(never.need, load.need));
  ASSERT_TRUE(Load("small").ok());
  const Refusal now = RefusalOf(testing_support::Details(Verify("small", &verified)));
  EXPECT_EQ(now.need, never.need);
  EXPECT_EQ(now.have, bytes_ - load.need);
  v1::UnloadModelRequest unload;
  unload.set_name("small");
  v1::UnloadModelResponse unloaded;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::UnloadModel, unload, &unloaded).ok());
  grpc::Status fits = Verify("small", &verified);
  // The engine's thread releases the model after the unload is answered.
  while (fits.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) fits = Verify("small", &verified);
  ASSERT_TRUE(fits.ok()) << fits.error_message();
  EXPECT_TRUE(verified.equal());
  EXPECT_TRUE(Load("small").ok()) << "the memory is free again";
}

TEST_F(ModelMemoryTest, C5ConversionTakesItsMemoryFromThatOfModels) {
  Import("base");
  Upload("page", "{\"text\": \"a b c d e\"}\n");
  Restart(2000);
  const auto refused = Convert(v1::MODEL_FORMAT_INT8, "small");
  const Refusal plain = RefusalOf(refused.error());
  EXPECT_EQ(plain.have, 2000);
  const Refusal evaluated = RefusalOf(Convert(v1::MODEL_FORMAT_INT8, "small", "page").error());
  EXPECT_GT(evaluated.need, plain.need) << "both models, and the data";
  Restart(evaluated.need);
  const auto made = Convert(v1::MODEL_FORMAT_INT8, "small", "page");
  EXPECT_TRUE(made.has_response()) << made.error().message();
}

TEST_F(ModelMemoryTest, C5InitialAdapterAddsToTheMemoryOfItsConversion) {
  Import("base");
  Restart(2000);
  const Refusal plain = RefusalOf(Convert(v1::MODEL_FORMAT_NF4, "plain").error());
  const Refusal adapted = RefusalOf(Convert(v1::MODEL_FORMAT_NF4, "small", "", 2).error());
  EXPECT_GT(adapted.need, plain.need);
  EXPECT_GT(RefusalOf(Convert(v1::MODEL_FORMAT_NF4, "small", "", 4).error()).need, adapted.need);
  Restart(adapted.need);
  const auto made = Convert(v1::MODEL_FORMAT_NF4, "small", "", 2);
  EXPECT_TRUE(made.has_response()) << made.error().message();
}

// A base that is not nf4 is converted to nf4, which takes memory.
TEST_F(ModelMemoryTest, C5ImportOfAnAdapterTakesItsMemoryFromThatOfModels) {
  Import("base");
  const v1::ImportModelRequest adapter = WriteAdapter(1);
  Restart(2000);
  const Refusal refusal = RefusalOf(ImportFrom(adapter).error());
  EXPECT_EQ(refusal.have, 2000);
  Restart(refusal.need);
  const auto made = ImportFrom(adapter);
  EXPECT_TRUE(made.has_response()) << made.error().message();
}

TEST_F(ModelMemoryTest, C5AdapterIsNotReadBeforeItHasItsMemory) {
  Import("base");
  const v1::ImportModelRequest adapter = WriteAdapter(std::numeric_limits<float>::infinity());
  Restart(2000);
  RefusalOf(ImportFrom(adapter).error());
  Restart(0);
  EXPECT_EQ(ReasonOf(ImportFrom(adapter).error()), "MODEL_FORMAT") << "its value is not finite";
}

TEST_F(ModelMemoryTest, C5ImportTakesItsMemoryFromThatOfModels) {
  Restart(2000);
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("base");
  const Refusal refusal = RefusalOf(ImportFrom(request).error());
  EXPECT_EQ(refusal.have, 2000);
  Restart(refusal.need);
  const auto made = ImportFrom(request);
  EXPECT_TRUE(made.has_response()) << made.error().message();
  request.set_name("second");
  EXPECT_TRUE(ImportFrom(request).has_response()) << "the memory is free again";
}

TEST_F(ModelMemoryTest, C5UploadStaysIfThereIsNoMemoryForItsImport) {
  Restart(2000);
  v1::ImportModelRequest request;
  request.set_upload_id(UploadModel(model::Golden("hf_tied_bf16")));
  request.set_name("base");
  RefusalOf(ImportFrom(request).error());
  // Refused for lack of memory again, so the upload still exists.
  RefusalOf(ImportFrom(request).error());
}

}  // namespace
}  // namespace nibble
