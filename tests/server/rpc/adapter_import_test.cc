#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "server/base/sha256.h"
#include "server/base/strings.h"
#include "server/model/artifact.h"
#include "tests/server/model/peft_files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/model_service_fixture.h"

namespace nibble {
namespace {

class AdapterImportTest : public ModelServiceTest {
 protected:
  void SetUp() override {
    ModelServiceTest::SetUp();
    Import("base");
    ASSERT_TRUE(Convert("base", "four", v1::MODEL_FORMAT_NF4).has_response());
    config_.rank = 4;
    config_.alpha = 16;
    config_.targets = {model::LinearKind::kQ, model::LinearKind::kDown};
  }
  // The files of WritePeftFiles, for an upload. `edit` may spoil the plan of the tensors.
  Files AdapterFiles(const base::Json& config, const std::function<void(std::vector<model::TensorPlan>&)>& edit = {}) {
    const auto four = model::Artifact::Open(directory_ + "/state/models/four");
    EXPECT_TRUE(four.ok()) << four.status();
    auto plan = model::AdapterTensors((*four)->config(), config_);
    auto values = model::AdapterValues(plan);
    if (edit) {
      edit(plan);
      values.clear();
    }
    const std::string path = directory_ + "/adapter";
    model::WritePeftFiles(path, config, plan, values);
    Files files;
    for (const char* name : {model::kAdapterConfigFile, model::kAdapterWeightsFile})
      files[name] = ReadFile(path + "/" + name);
    return files;
  }
  longrunning::Operation ImportUpload(const Files& files, const std::string& base_model, const std::string& name) {
    v1::UploadModelResponse upload;
    EXPECT_TRUE(Upload(files, &upload).ok());
    v1::ImportModelRequest request;
    request.set_upload_id(upload.upload_id());
    request.set_name(name);
    if (!base_model.empty()) request.set_base_model(base_model);
    return Imported(request);
  }
  // Imports the adapter on `base_model`, checks that this fails and leaves nothing, and returns the error.
  google::rpc::Status Refused(const Files& files, const std::string& base_model) {
    const auto done = ImportUpload(files, base_model, "bad");
    EXPECT_TRUE(done.has_error());
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/state/models/bad"));
    EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
    return done.error();
  }
  model::AdapterConfig config_;
};

TEST_F(AdapterImportTest, PeftAdapterIsImportedServedConvertedAndExported) {
  // The adapter is imported on the nf4 model and on the bf16 model, which is quantized to the same nf4 weights.
  for (const std::string base_model : {"four", "base"}) {
    const std::string name = "tuned-" + base_model;
    const auto done = ImportUpload(AdapterFiles(model::ToPeftConfig(config_)), base_model, name);
    ASSERT_TRUE(done.has_response()) << done.error().message();
    v1::Model model;
    ASSERT_TRUE(done.response().UnpackTo(&model));
    EXPECT_EQ(model.format(), v1::MODEL_FORMAT_LORA);
    EXPECT_EQ(model.base_model(), base_model);
    EXPECT_EQ(model.base_digest(), Get("four").digest());
    EXPECT_EQ(model.origin(), v1::MODEL_ORIGIN_IMPORT);
    EXPECT_EQ(model.source(), "peft");
  }
  EXPECT_EQ(Get("tuned-four").digest(), Get("tuned-base").digest());
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
  const auto answer = [&](const std::string& name) {
    v1::GenerateResponse response;
    const auto status = Call(inference_, &v1::InferenceService::Stub::Generate, Prompt(name, "hi", 8), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  EXPECT_EQ(answer("tuned-four").outputs(0).token_ids_size(), 8);
  ASSERT_TRUE(Convert("tuned-four", "tuned-int8", v1::MODEL_FORMAT_INT8).has_response());
  v1::VerifyModelResponse verified;
  ASSERT_TRUE(Verify("tuned-int8", &verified).ok());
  EXPECT_TRUE(verified.equal());
  ASSERT_TRUE(Convert("tuned-four", "tuned-bf16", v1::MODEL_FORMAT_BF16).has_response());
  EXPECT_EQ(Get("tuned-bf16").format(), v1::MODEL_FORMAT_BF16);
  EXPECT_EQ(answer("tuned-bf16").outputs(0).token_ids_size(), 8);
  v1::ExportModelRequest request;
  request.set_model("tuned-bf16");
  request.set_format(v1::EXPORT_FORMAT_HF);
  EXPECT_TRUE(Export(request).contains("model.safetensors"));
  request.set_model("tuned-four");
  longrunning::Operation refused;
  const auto status = Call(models_, &v1::ModelService::Stub::ExportModel, request, &refused);
  EXPECT_EQ(FieldOf(status), "format");
  EXPECT_THAT(status.error_message(), HasSubstr("nibble models convert tuned-four --to bf16"));
  request.set_format(v1::EXPORT_FORMAT_PEFT);
  Files files = Export(request);
  EXPECT_THAT(files.at("adapter_model.safetensors"), HasSubstr(Get("four").digest()));
  files.erase("README.md");
  ASSERT_TRUE(ImportUpload(files, "base", "again").has_response());
  EXPECT_EQ(Get("again").digest(), Get("tuned-four").digest());
}

TEST_F(AdapterImportTest, ExportNamesTheSourceOfTheBase) {
  const auto exported_base = [&](const std::string& model) {
    v1::ExportModelRequest request;
    request.set_model(model);
    request.set_format(v1::EXPORT_FORMAT_PEFT);
    const auto config = base::ParseJson(Export(request).at("adapter_config.json"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->value("base_model_name_or_path", "") : "";
  };
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("known");
  request.set_source_name("org/model");
  ASSERT_TRUE(Imported(request).has_response());
  ASSERT_TRUE(Convert("known", "known-nf4", v1::MODEL_FORMAT_NF4).has_response());
  const Files files = AdapterFiles(model::ToPeftConfig(config_));
  for (const std::string base_model : {"known", "known-nf4", "base"}) {
    ASSERT_TRUE(ImportUpload(files, base_model, "on-" + base_model).has_response());
  }
  EXPECT_EQ(exported_base("on-known"), "org/model");
  EXPECT_EQ(exported_base("on-known-nf4"), "org/model");
  EXPECT_EQ(exported_base("on-base"), "base") << "the import of this base has no source_name";
  config_.base_model_name_or_path = "org/other";
  ASSERT_TRUE(ImportUpload(AdapterFiles(model::ToPeftConfig(config_)), "base", "named").has_response());
  EXPECT_EQ(exported_base("named"), "org/other") << "the adapter's own files name its base";
  longrunning::Operation operation;
  request.set_name("long");
  request.set_source_name(std::string(4097, 'a'));
  EXPECT_EQ(FieldOf(StartImport(request, &operation)), "source_name");
  request.set_source_name("org/model");
  request.set_base_model("base");
  EXPECT_EQ(FieldOf(StartImport(request, &operation)), "source_name") << "an adapter must not have a source_name";
}

// The base is checked first: the upload stays for another try.
TEST_F(AdapterImportTest, DamagedBaseDoesNotUseUpTheUpload) {
  v1::UploadModelResponse upload;
  ASSERT_TRUE(Upload(AdapterFiles(model::ToPeftConfig(config_)), &upload).ok());
  v1::ImportModelRequest request;
  request.set_upload_id(upload.upload_id());
  request.set_name("tuned");
  request.set_base_model("four");
  const std::string weights = directory_ + "/state/models/four/model.safetensors";
  const std::string whole = ReadFile(weights);
  const auto write = [&](const std::string& bytes) { std::ofstream(weights, std::ios::binary) << bytes; };
  write(whole.substr(0, whole.size() - 1) + static_cast<char>(whole.back() ^ 1));
  EXPECT_EQ(ReasonOf(Imported(request).error()), "ARTIFACT_CORRUPT");
  write(whole);
  const auto again = Imported(request);
  EXPECT_TRUE(again.has_response()) << again.error().message();
}

TEST_F(AdapterImportTest, TensorsThatDoNotFitTheBaseAreNamed) {
  const base::Json config = model::ToPeftConfig(config_);
  auto error = Refused(AdapterFiles(config, [](auto& plan) { plan[1].shape[0] += 1; }), "four");
  EXPECT_EQ(error.code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_EQ(ReasonOf(error), "ADAPTER_SHAPE");
  EXPECT_THAT(error.message(), HasSubstr(model::LoraBName(0, model::LinearKind::kQ)));
  error = Refused(AdapterFiles(config, [](auto& plan) { plan.pop_back(); }), "base");
  EXPECT_EQ(ReasonOf(error), "ADAPTER_SHAPE");
  EXPECT_THAT(error.message(), HasSubstr("is missing"));
}

TEST_F(AdapterImportTest, BaseThatTheAdapterWasNotTrainedOnIsRefused) {
  base::Json config = model::ToPeftConfig(config_);
  config[model::kBaseDigestKey] = std::string(64, 'd');
  const auto error = Refused(AdapterFiles(config), "base");
  EXPECT_EQ(error.code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_EQ(ReasonOf(error), "BASE_MISMATCH");
  EXPECT_THAT(error.message(), HasSubstr("base \"base\", stored as bf16, has the digest " + Get("base").digest()));
  EXPECT_THAT(error.message(), HasSubstr(Get("four").digest()));
}

TEST_F(AdapterImportTest, UnsupportedOrTruncatedAdapterIsRefusedByName) {
  base::Json config = model::ToPeftConfig(config_);
  config["bias"] = "all";
  auto error = Refused(AdapterFiles(config), "four");
  EXPECT_EQ(error.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(ReasonOf(error), "MODEL_FORMAT");
  EXPECT_THAT(error.message(), HasSubstr("bias"));
  Files files = AdapterFiles(model::ToPeftConfig(config_));
  files[model::kAdapterWeightsFile].resize(files[model::kAdapterWeightsFile].size() - 8);
  error = Refused(files, "four");
  EXPECT_EQ(ReasonOf(error), "MODEL_FORMAT");
  EXPECT_THAT(error.message(), HasSubstr(model::kAdapterWeightsFile));
  error = Refused(AdapterFiles(model::ToPeftConfig(config_)), "");
  EXPECT_THAT(error.message(), HasSubstr("base_model"));
}

TEST_F(AdapterImportTest, BaseThatCannotCarryAnAdapterIsRefusedAtOnce) {
  ASSERT_TRUE(Convert("base", "ternary", v1::MODEL_FORMAT_TERNARY).has_response());
  v1::UploadModelResponse upload;
  ASSERT_TRUE(Upload(AdapterFiles(model::ToPeftConfig(config_)), &upload).ok());
  v1::ImportModelRequest request;
  request.set_upload_id(upload.upload_id());
  request.set_name("new");
  request.set_base_model("ternary");
  longrunning::Operation operation;
  auto status = StartImport(request, &operation);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(status), "ADAPTER_BASE");
  EXPECT_THAT(status.error_message(), HasSubstr("wanted nf4"));
  request.set_base_model("nobody");
  EXPECT_EQ(ReasonOf(StartImport(request, &operation)), "MODEL");
  request.set_base_model("four");
  request.set_dtype(v1::MODEL_FORMAT_F32);
  EXPECT_EQ(FieldOf(StartImport(request, &operation)), "dtype");
  request.clear_dtype();
  EXPECT_TRUE(Imported(request).has_response()) << "the upload was not used up";
}

}  // namespace
}  // namespace nibble
