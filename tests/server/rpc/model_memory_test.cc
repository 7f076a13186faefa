// The memory of work with whole models, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/model/artifact.h"
#include "tests/server/model/peft_files.h"
#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::ReasonOf;
namespace longrunning = google::longrunning;

// What models may take is set between two starts. docs/faults.md, C5.
class ModelMemoryTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.serve_memory_bytes = bytes_;
    if (!import_root_.empty()) options.import_root = import_root_;
    return options;
  }
  void Restart(std::int64_t bytes) {
    app_.reset();
    bytes_ = bytes;
    StartApp();
  }
  longrunning::Operation Convert(v1::ModelFormat target, const std::string& name, const std::string& eval_dataset = "") {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name(name);
    request.set_target(target);
    if (!eval_dataset.empty()) request.set_eval_dataset(eval_dataset);
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
  // The bytes that a refusal says are needed, and those that it says there are.
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
  grpc::Status Load(const std::string& name) {
    v1::LoadModelRequest request;
    request.set_name(name);
    v1::LoadModelResponse response;
    return Call(models_, &v1::ModelService::Stub::LoadModel, request, &response);
  }
  std::int64_t bytes_ = 0;
  std::string import_root_;
};

TEST_F(ModelMemoryTest, C5AVerifyTakesItsMemoryOfWhatModelsMayHave) {
  Import("base");
  ASSERT_TRUE(Convert(v1::MODEL_FORMAT_INT8, "small").has_response());
  Restart(2000);
  v1::VerifyModelResponse verified;
  const Refusal never = RefusalOf(testing_support::Details(Verify("small", &verified)));
  EXPECT_EQ(never.have, 2000);
  EXPECT_GT(never.need, 2000);
  const Refusal load = RefusalOf(testing_support::Details(Load("small")));
  // Room for either, not for both.
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
  // The engine's thread lets go of the model after its unload is answered.
  while (fits.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) fits = Verify("small", &verified);
  ASSERT_TRUE(fits.ok()) << fits.error_message();
  EXPECT_TRUE(verified.equal());
  EXPECT_TRUE(Load("small").ok()) << "the memory is back";
}

TEST_F(ModelMemoryTest, C5AConversionTakesItsMemoryOfWhatModelsMayHave) {
  Import("base");
  Upload("page", "{\"text\": \"a b c d e\"}\n");
  Restart(2000);
  const auto refused = Convert(v1::MODEL_FORMAT_INT8, "small");
  const Refusal plain = RefusalOf(refused.error());
  EXPECT_EQ(plain.have, 2000);
  const Refusal evaluated = RefusalOf(Convert(v1::MODEL_FORMAT_INT8, "small", "page").error());
  EXPECT_GT(evaluated.need, plain.need) << "the model before and after it, with the data";
  Restart(evaluated.need);
  const auto made = Convert(v1::MODEL_FORMAT_INT8, "small", "page");
  EXPECT_TRUE(made.has_response()) << made.error().message();
}

// A base that is not nf4 becomes it.
TEST_F(ModelMemoryTest, C5AnImportOfAnAdapterTakesItsMemoryOfWhatModelsMayHave) {
  Import("base");
  const auto base_model = model::Artifact::Open(directory_ + "/state/models/base");
  ASSERT_TRUE(base_model.ok()) << base_model.status();
  model::AdapterConfig config;
  config.rank = 4;
  config.alpha = 16;
  config.targets = {model::LinearKind::kQ};
  const auto plan = model::AdapterTensors((*base_model)->config(), config);
  model::WritePeftFiles(directory_ + "/adapter", model::ToPeftConfig(config), plan, model::AdapterValues(plan));
  import_root_ = directory_;
  const auto import = [&] {
    v1::ImportModelRequest request;
    request.set_server_path("adapter");
    request.set_name("tuned");
    request.set_base_model("base");
    longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  };
  Restart(2000);
  const Refusal refusal = RefusalOf(import().error());
  EXPECT_EQ(refusal.have, 2000);
  Restart(refusal.need);
  const auto made = import();
  EXPECT_TRUE(made.has_response()) << made.error().message();
}

}  // namespace
}  // namespace nibble
