#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "server/base/files.h"
#include "server/base/strings.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/model_service_fixture.h"

namespace nibble {
namespace {

TEST_F(ModelServiceTest, UploadedModelIsImported) {
  v1::UploadModelResponse upload;
  auto status = Upload(ModelFiles(), &upload);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(upload.upload_id().empty());
  v1::ImportModelRequest request;
  request.set_upload_id(upload.upload_id());
  request.set_name("mine");
  longrunning::Operation operation;
  status = StartImport(request, &operation);
  ASSERT_TRUE(status.ok()) << status.error_message();
  v1::ModelOperationMetadata metadata;
  ASSERT_TRUE(operation.metadata().UnpackTo(&metadata));
  EXPECT_EQ(metadata.model(), "mine");
  EXPECT_EQ(metadata.kind(), "import");
  const auto done = Wait(operation);
  ASSERT_TRUE(done.has_response()) << done.error().message();
  v1::Model model;
  ASSERT_TRUE(done.response().UnpackTo(&model));
  EXPECT_EQ(model.name(), "mine");
  EXPECT_EQ(model.format(), v1::MODEL_FORMAT_BF16);
  EXPECT_EQ(model.digest().size(), 64u);
  EXPECT_EQ(model.architecture().num_layers(), 2);
  EXPECT_TRUE(model.has_chat_template());
  EXPECT_EQ(model.origin(), v1::MODEL_ORIGIN_IMPORT);
  // The upload is used up.
  EXPECT_EQ(ReasonOf(StartImport(request, &operation)), "NAME_TAKEN");
  request.set_name("again");
  EXPECT_EQ(ReasonOf(StartImport(request, &operation)), "UPLOAD");
}

TEST_F(ModelServiceTest, MalformedUploadsAreRefusedByField) {
  const Files files = {{"config.json", "{}"}, {"b.txt", "xyz"}};
  v1::UploadModelResponse response;
  const auto without = [](v1::UploadModelRequest::MessageCase kind) {
    return [kind](v1::UploadModelRequest& m) { return m.message_case() != kind; };
  };
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kHeader))), "header");
  EXPECT_EQ(FieldOf(Upload(files, &response,
                           [](v1::UploadModelRequest& m) {
                             if (m.has_header()) m.mutable_header()->set_size_bytes(-1);
                             return true;
                           })),
            "header.size_bytes");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kFile))), "chunk");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kChunk))), "file.size_bytes");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kFinish))), "message");
  EXPECT_EQ(FieldOf(Upload(files, &response,
                           [](v1::UploadModelRequest& m) {
                             if (m.has_finish()) m.mutable_finish()->set_sha256(std::string(64, '0'));
                             return true;
                           })),
            "finish.sha256");
  EXPECT_EQ(FieldOf(Upload(files, &response,
                           [](v1::UploadModelRequest& m) {
                             if (m.has_chunk()) m.mutable_chunk()->clear();
                             return true;
                           })),
            "chunk");
  const auto outside = Upload({{"../evil", "x"}}, &response);
  EXPECT_EQ(outside.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // The refused uploads leave nothing.
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
}

TEST_F(ModelServiceTest, TruncatedFileIsRefusedAndLeavesNothing) {
  Files files = ModelFiles();
  files["model.safetensors"].resize(files["model.safetensors"].size() / 2);
  v1::UploadModelResponse upload;
  ASSERT_TRUE(Upload(files, &upload).ok());
  v1::ImportModelRequest request;
  request.set_upload_id(upload.upload_id());
  request.set_name("broken");
  longrunning::Operation operation;
  ASSERT_TRUE(StartImport(request, &operation).ok());
  const auto done = Wait(operation);
  ASSERT_TRUE(done.has_error());
  EXPECT_EQ(done.error().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(ReasonOf(done.error()), "MODEL_FORMAT");
  EXPECT_THAT(done.error().message(), HasSubstr("model.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/models"));
}

class ImportLimitsTest : public ModelServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ModelServiceTest::Options();
    options.max_tokenizer_bytes = max_tokenizer_bytes_;
    options.operation_deadline_s = operation_deadline_s_;
    return options;
  }
  longrunning::Operation ImportWith(std::int64_t max_tokenizer_bytes, double operation_deadline_s) {
    max_tokenizer_bytes_ = max_tokenizer_bytes;
    operation_deadline_s_ = operation_deadline_s;
    app_.reset();
    StartApp();
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name("m");
    return Imported(request);
  }
  std::int64_t max_tokenizer_bytes_ = 64 << 20;
  double operation_deadline_s_ = 0;
};

TEST_F(ImportLimitsTest, FlagsLimitTheTokenizerAndTheTimeOfAnImport) {
  const auto size = static_cast<std::int64_t>(ModelFiles().at("tokenizer.json").size());
  const auto large = ImportWith(size - 1, 0);
  EXPECT_EQ(large.error().code(), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED)) << large.error().message();
  EXPECT_EQ(ReasonOf(large.error()), "UPLOAD_TOO_LARGE");
  const auto slow = ImportWith(size, 1e-9);
  EXPECT_EQ(slow.error().code(), static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED)) << slow.error().message();
  EXPECT_EQ(ReasonOf(slow.error()), "DEADLINE_EXCEEDED");
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/models"));
  EXPECT_TRUE(ImportWith(size, 600).has_response());
}

// Two imports of one name: the one that comes too late keeps its upload.
TEST_F(ModelServiceTest, AnUploadOutlivesAnImportWhoseNameIsTaken) {
  v1::ImportModelRequest first, second;
  first.set_server_path("hf_tied_bf16");
  longrunning::Operation one, two;
  bool refused = false;
  // The second may come first; then both are tried again.
  for (int round = 0; round < 20 && !refused; ++round) {
    v1::UploadModelResponse upload;
    ASSERT_TRUE(Upload(ModelFiles(), &upload).ok());
    first.set_name(base::StrCat("m", round));
    second.set_upload_id(upload.upload_id());
    second.set_name(first.name());
    ASSERT_TRUE(StartImport(first, &one).ok());
    const auto status = StartImport(second, &two);
    refused = status.ok() ? Wait(two).has_error() : true;
    Wait(one);
  }
  ASSERT_TRUE(refused);
  second.set_name("n");
  const auto again = StartImport(second, &two);
  ASSERT_TRUE(again.ok()) << again.error_message();
  EXPECT_TRUE(Wait(two).has_response());
}

TEST_F(ModelServiceTest, PathsOutsideTheImportRootAreRefused) {
  longrunning::Operation operation;
  v1::ImportModelRequest request;
  request.set_name("m");
  for (const char* path : {"../model", "/etc", "hf_tied_bf16/../../model"}) {
    request.set_server_path(path);
    const auto status = StartImport(request, &operation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << path;
    EXPECT_EQ(ReasonOf(status), "IMPORT_ROOT");
  }
  request.set_server_path("not_there");
  EXPECT_EQ(StartImport(request, &operation).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ModelServiceTest, SameRequestIdReturnsTheSameOperation) {
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("m");
  request.set_request_id("4f0c0c4e-1a2b-4c3d-8e9f-000000000001");
  longrunning::Operation first, second;
  ASSERT_TRUE(StartImport(request, &first).ok());
  ASSERT_TRUE(StartImport(request, &second).ok());
  EXPECT_EQ(first.name(), second.name());
  Wait(first);
  request.set_name("other");
  EXPECT_EQ(ReasonOf(StartImport(request, &second)), "IDEMPOTENCY_CONFLICT");
  request.set_request_id(std::string(257, 'a'));
  EXPECT_EQ(FieldOf(StartImport(request, &second)), "request_id");
  request.set_request_id(std::string(256, 'a'));
  ASSERT_TRUE(StartImport(request, &second).ok());
  Wait(second);
}

TEST_F(ModelServiceTest, Int8CarriesItsRecordAndVerifies) {
  Import("base");
  const auto done = Convert("base", "small", v1::MODEL_FORMAT_INT8);
  ASSERT_TRUE(done.has_response()) << done.error().message();
  v1::ConvertModelResponse converted;
  ASSERT_TRUE(done.response().UnpackTo(&converted));
  EXPECT_EQ(converted.model().format(), v1::MODEL_FORMAT_INT8);
  EXPECT_EQ(converted.model().determinism(), v1::DETERMINISM_EXACT);
  EXPECT_GT(converted.model().record_rows(), 0);
  EXPECT_EQ(converted.model().recorded_by(), "convert");
  ASSERT_GT(converted.report().layers_size(), 0);
  for (const auto& layer : converted.report().layers()) {
    EXPECT_GT(layer.relative_error(), 0) << layer.layer();
    EXPECT_LT(layer.relative_error(), 0.05) << layer.layer();
    EXPECT_GT(layer.rms_error(), 0) << layer.layer();
    EXPECT_LE(layer.rms_error(), layer.max_abs_error()) << layer.layer();
  }
  const v1::Model small = Get("small");
  ASSERT_EQ(small.conversion().layers_size(), converted.report().layers_size());
  EXPECT_EQ(small.conversion().layers(0).rms_error(), converted.report().layers(0).rms_error());
  v1::VerifyModelResponse verified;
  auto status = Verify("small", &verified);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(verified.equal());
  EXPECT_EQ(verified.rows(), converted.model().record_rows());
  EXPECT_EQ(ReasonOf(Verify("base", &verified)), "NO_RECORD");
  v1::VerifyModelRequest again;
  again.set_name("small");
  again.set_request_id("verify");
  google::longrunning::Operation first, second;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::VerifyModel, again, &first).ok());
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::VerifyModel, again, &second).ok());
  EXPECT_EQ(second.name(), first.name());
  EXPECT_TRUE(Wait(first).has_response());
}

TEST_F(ModelServiceTest, ConversionBeyondItsToleranceMakesNoModelAndReportsItsLosses) {
  Import("base");
  AppTest::Upload("page", "{\"text\": \"the light of the keeper was seen from far away\"}\n");
  v1::ConvertModelRequest request;
  request.set_model("base");
  request.set_name("small");
  request.set_target(v1::MODEL_FORMAT_NF4);
  request.set_eval_dataset("page");
  request.mutable_tolerance()->set_max_eval_loss_delta(-100);
  const auto convert = [&] {
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ConvertModel(&context, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  };
  const auto refused = convert();
  ASSERT_TRUE(refused.has_error());
  EXPECT_EQ(refused.error().code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION))
      << refused.error().message();
  google::rpc::ErrorInfo info;
  v1::ConversionReport report;
  bool informed = false, reported = false;
  for (const auto& detail : refused.error().details()) {
    informed |= detail.UnpackTo(&info);
    reported |= detail.UnpackTo(&report);
  }
  ASSERT_TRUE(informed && reported) << refused.error().ShortDebugString();
  EXPECT_EQ(info.reason(), "CONVERSION_TOLERANCE");
  EXPECT_GT(report.eval_loss_before(), 0);
  EXPECT_GT(report.eval_loss_after(), 0);
  v1::GetModelRequest get;
  get.set_name("small");
  v1::Model model;
  grpc::ClientContext context;
  EXPECT_EQ(models_->GetModel(&context, get, &model).error_code(), grpc::StatusCode::NOT_FOUND);
  // The name is free again.
  request.mutable_tolerance()->set_max_eval_loss_delta(100);
  const auto kept = convert();
  EXPECT_TRUE(kept.has_response()) << kept.error().message();
}

// T7 (docs/faults.md): a conversion reads the cached tokens of its evaluation set instead of tokenizing it again in
// memory.
TEST_F(ModelServiceTest, ConversionEvaluatesCachedTokens) {
  Import("base");
  const std::string text = "{\"text\": \"the light of the keeper was seen from far away\"}\n";
  AppTest::Upload("page", text);
  const auto report_of = [&](const std::string& name) {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name(name);
    request.set_target(v1::MODEL_FORMAT_INT8);
    request.set_eval_dataset("page");
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ConvertModel(&context, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::ConvertModelResponse converted;
    const auto done = Wait(operation);
    EXPECT_TRUE(done.has_response() && done.response().UnpackTo(&converted)) << done.error().message();
    return converted.report();
  };
  const v1::ConversionReport first = report_of("first");
  const auto files = base::RealFileSystem().List(directory_ + "/state/tokens/page");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->size(), 1u);
  // Replaces the rows: equal losses below show that they are not read again.
  std::ofstream(directory_ + "/state/datasets/page/data.jsonl") << std::string(text.size(), 'x');
  const v1::ConversionReport second = report_of("second");
  EXPECT_GT(first.eval_loss_after(), 0);
  EXPECT_EQ(second.eval_loss_after(), first.eval_loss_after());
  EXPECT_EQ(second.eval_tokens(), first.eval_tokens());
}

TEST_F(ModelServiceTest, ImpossibleConversionIsRefusedAtOnceByField) {
  Import("base");
  ASSERT_TRUE(Convert("base", "four", v1::MODEL_FORMAT_NF4).has_response());
  const auto refused = [&](const std::function<void(v1::ConvertModelRequest&)>& edit) {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name("new");
    request.set_target(v1::MODEL_FORMAT_INT8);
    edit(request);
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ConvertModel(&context, request, &operation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.ok() ? "" : FieldOf(status);
  };
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(refused([&](auto& r) { r.mutable_tolerance()->set_min_top1_agreement(share); }),
              "tolerance.min_top1_agreement");
  }
  for (const double delta : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(refused([&](auto& r) { r.mutable_tolerance()->set_max_eval_loss_delta(delta); }),
              "tolerance.max_eval_loss_delta");
  }
  EXPECT_EQ(refused([](auto& r) { r.set_lora(static_cast<v1::LoraHandling>(99)); }), "lora");
  EXPECT_EQ(refused([](auto& r) { r.set_lora(v1::LORA_HANDLING_MERGE); }), "lora") << "it has no adapter to merge";
  EXPECT_EQ(refused([](auto& r) { r.set_head(static_cast<v1::ModelFormat>(99)); }), "head");
  EXPECT_EQ(refused([](auto& r) {
              r.set_model("four");
              r.set_target(v1::MODEL_FORMAT_NF4);
            }),
            "target");
  // UNSPECIFIED means unset.
  v1::ConvertModelRequest request;
  request.set_model("base");
  request.set_name("again");
  request.set_target(v1::MODEL_FORMAT_NF4);
  request.set_head(v1::MODEL_FORMAT_UNSPECIFIED);
  longrunning::Operation operation;
  grpc::ClientContext context;
  const auto status = models_->ConvertModel(&context, request, &operation);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Wait(operation).has_response());
}

TEST_F(ModelServiceTest, HeadFormatIsThatOfItsTensor) {
  Import("base");
  EXPECT_EQ(Get("base").head_format(), v1::MODEL_FORMAT_BF16);
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("wide");
  request.set_dtype(v1::MODEL_FORMAT_F32);
  longrunning::Operation operation;
  ASSERT_TRUE(StartImport(request, &operation).ok());
  ASSERT_TRUE(Wait(operation).has_response());
  EXPECT_EQ(Get("wide").head_format(), v1::MODEL_FORMAT_F32);
  ASSERT_TRUE(Convert("base", "four", v1::MODEL_FORMAT_NF4).has_response());
  ASSERT_TRUE(Convert("wide", "wide-four", v1::MODEL_FORMAT_NF4).has_response());
  EXPECT_EQ(Get("four").head_format(), v1::MODEL_FORMAT_BF16);
  EXPECT_EQ(Get("wide-four").head_format(), v1::MODEL_FORMAT_F32);
}

TEST_F(ModelServiceTest, ImpossibleExportIsRefusedAtOnceByField) {
  Import("base");
  ASSERT_TRUE(Convert("base", "four", v1::MODEL_FORMAT_NF4).has_response());
  const auto refused = [&](const std::string& model, v1::ExportFormat format, int linear_class,
                           std::optional<std::int64_t> max_shard_bytes = std::nullopt) {
    v1::ExportModelRequest request;
    if (max_shard_bytes.has_value()) request.set_max_shard_bytes(*max_shard_bytes);
    request.set_model(model);
    request.set_format(format);
    request.set_linear_class(static_cast<v1::HfLinearClass>(linear_class));
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ExportModel(&context, request, &operation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.ok() ? "" : FieldOf(status);
  };
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_PEFT, 0), "format");
  EXPECT_EQ(refused("four", v1::EXPORT_FORMAT_HF, 0), "format");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_HF_BITNET, 0), "format");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_HF, 99), "linear_class");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_COMPRESSED_TENSORS, 0), "format");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_HF, 0, 0), "max_shard_bytes");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_HF, 0, -1), "max_shard_bytes");
  EXPECT_EQ(refused("base", v1::EXPORT_FORMAT_PEFT, 0, 1000), "max_shard_bytes");
}

TEST_F(ModelServiceTest, ChangedWeightIsDetected) {
  Import("base");
  ASSERT_TRUE(Convert("base", "small", v1::MODEL_FORMAT_INT8).has_response());
  // Whichever tensor the last bytes of the file belong to, a changed byte must be detected.
  const std::string path = directory_ + "/state/models/small/model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-4, std::ios::end);
  const int byte = file.get();
  file.seekp(-4, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  v1::VerifyModelResponse verified;
  const auto status = Verify("small", &verified);
  EXPECT_TRUE(!status.ok() || !verified.equal()) << "a changed weight was not detected";
}

TEST_F(ModelServiceTest, ExportIsDownloadedCompleteWithItsDigests) {
  Import("base");
  v1::ExportModelRequest request;
  request.set_model("base");
  request.set_format(v1::EXPORT_FORMAT_HF);
  const Files files = Export(request);
  EXPECT_TRUE(files.contains("model.safetensors"));
  EXPECT_FALSE(files.contains("model.safetensors.index.json"));
}

TEST_F(ModelServiceTest, C9DeletingTheOperationOfAnExportFreesItsFilesAndItsRequestId) {
  Import("base");
  v1::ExportModelRequest request;
  request.set_model("base");
  request.set_format(v1::EXPORT_FORMAT_HF);
  request.set_request_id("export");
  const auto made = [&] {
    longrunning::Operation operation;
    const auto status = Call(models_, &v1::ModelService::Stub::ExportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  };
  const auto artifact = [](const longrunning::Operation& operation) {
    v1::ExportModelResponse exported;
    EXPECT_TRUE(operation.response().UnpackTo(&exported)) << operation.error().message();
    return exported.artifact_id();
  };
  const longrunning::Operation first = made();
  EXPECT_EQ(artifact(made()), artifact(first));
  longrunning::DeleteOperationRequest remove;
  remove.set_name(first.name());
  google::protobuf::Empty none;
  ASSERT_TRUE(Call(operations_, &longrunning::Operations::Stub::DeleteOperation, remove, &none).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
  v1::DownloadArtifactRequest download;
  download.set_artifact_id(artifact(first));
  grpc::ClientContext context;
  auto reader = models_->DownloadArtifact(&context, download);
  v1::DownloadArtifactResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(ReasonOf(reader->Finish()), "ARTIFACT");
  const longrunning::Operation second = made();
  EXPECT_NE(second.name(), first.name());
  EXPECT_NE(artifact(second), artifact(first));
}

TEST_F(ModelServiceTest, ExportAboveTheLimitIsShardedAndImportsAgain) {
  Import("base");
  v1::ExportModelRequest request;
  request.set_model("base");
  request.set_format(v1::EXPORT_FORMAT_HF);
  request.set_max_shard_bytes(8000);
  const Files files = Export(request);
  EXPECT_FALSE(files.contains("model.safetensors"));
  EXPECT_TRUE(files.contains("model.safetensors.index.json"));
  v1::UploadModelResponse upload;
  ASSERT_TRUE(Upload(files, &upload).ok());
  v1::ImportModelRequest import;
  import.set_upload_id(upload.upload_id());
  import.set_name("again");
  const auto done = Imported(import);
  ASSERT_TRUE(done.has_response()) << done.error().message();
  EXPECT_EQ(Get("again").digest(), Get("base").digest());
}

TEST_F(ModelServiceTest, AnInt8ModelMayMultiplyFloatRows) {
  Import("base");
  v1::ConvertModelRequest convert;
  convert.set_model("base");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  longrunning::Operation operation;
  for (const auto& [name, activations] :
       {std::pair("unset", v1::MODEL_FORMAT_UNSPECIFIED), std::pair("codes", v1::MODEL_FORMAT_INT8),
        std::pair("rows", v1::MODEL_FORMAT_BF16)}) {
    convert.set_name(name);
    convert.set_activations(activations);
    ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation).ok());
    ASSERT_TRUE(Wait(operation).has_response());
    EXPECT_EQ(Get(name).determinism(), v1::DETERMINISM_EXACT);
    EXPECT_EQ(Get(name).digest(), Get("unset").digest());
  }
  EXPECT_EQ(Get("base").activations(), v1::MODEL_FORMAT_UNSPECIFIED);
  EXPECT_EQ(Get("unset").activations(), v1::MODEL_FORMAT_INT8);
  EXPECT_EQ(Get("codes").activations(), v1::MODEL_FORMAT_INT8);
  EXPECT_EQ(Get("codes").act_outliers(), 8);
  EXPECT_EQ(Get("rows").activations(), v1::MODEL_FORMAT_BF16);
  EXPECT_EQ(Get("rows").act_outliers(), 0);
  convert.set_name("outliers");
  convert.set_act_outliers(8);
  EXPECT_EQ(FieldOf(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation)), "act_outliers");
}

TEST_F(ModelServiceTest, AnInt8ModelWithAFloatHeadIsExportedAsCompressedTensors) {
  Import("base");
  v1::ConvertModelRequest convert;
  convert.set_model("base");
  convert.set_name("small");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  convert.set_act_outliers(0);
  convert.set_head(v1::MODEL_FORMAT_BF16);
  longrunning::Operation operation;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation).ok());
  ASSERT_TRUE(Wait(operation).has_response());
  v1::ExportModelRequest request;
  request.set_model("small");
  request.set_format(v1::EXPORT_FORMAT_COMPRESSED_TENSORS);
  const Files files = Export(request);
  EXPECT_TRUE(files.contains("model.safetensors"));
  EXPECT_THAT(files.at("config.json"), HasSubstr("int-quantized"));
  convert.set_name("outliers");
  convert.set_act_outliers(4);
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation).ok());
  ASSERT_TRUE(Wait(operation).has_response());
  request.set_model("outliers");
  const auto status = Call(models_, &v1::ModelService::Stub::ExportModel, request, &operation);
  EXPECT_EQ(FieldOf(status), "format");
  EXPECT_THAT(status.error_message(), HasSubstr("outliers"));
}

}  // namespace
}  // namespace nibble
