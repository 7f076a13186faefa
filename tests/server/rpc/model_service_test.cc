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

namespace nibble {
namespace {

using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::ReasonOf;
namespace longrunning = google::longrunning;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ModelServiceTest : public AppTest {
 protected:
  using Files = std::map<std::string, std::string>;
  static Files ModelFiles() {
    Files files;
    for (const auto& entry : std::filesystem::directory_iterator(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16")) {
      files[entry.path().filename()] = ReadFile(entry.path());
    }
    return files;
  }
  // Uploads the files. Each message passes through `edit`, which may change it; false leaves the message out.
  grpc::Status Upload(const Files& files, v1::UploadModelResponse* response,
                      const std::function<bool(v1::UploadModelRequest&)>& edit = {}) {
    grpc::ClientContext context;
    auto writer = models_->UploadModel(&context, response);
    const auto send = [&](v1::UploadModelRequest message) {
      if (!edit || edit(message)) writer->Write(message);
    };
    v1::UploadModelRequest message;
    message.mutable_header()->set_name("test");
    send(message);
    base::Sha256 digest;
    for (const auto& [name, bytes] : files) {
      message.mutable_file()->set_path(name);
      message.mutable_file()->set_size_bytes(static_cast<std::int64_t>(bytes.size()));
      send(message);
      message.Clear();
      for (std::size_t at = 0; at < bytes.size(); at += 1 << 20) {
        message.set_chunk(bytes.substr(at, 1 << 20));
        send(message);
      }
      digest.Update(bytes);
      message.Clear();
    }
    message.mutable_finish()->set_sha256(digest.HexDigest());
    send(message);
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status StartImport(const v1::ImportModelRequest& request, longrunning::Operation* operation) {
    grpc::ClientContext context;
    return models_->ImportModel(&context, request, operation);
  }
  longrunning::Operation Imported(const v1::ImportModelRequest& request) {
    longrunning::Operation operation;
    const auto status = StartImport(request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? Wait(operation) : operation;
  }
  // Exports and downloads the files; their number and digests must be those that were announced.
  Files Export(const v1::ExportModelRequest& request) {
    Files files;
    longrunning::Operation operation;
    const auto status = Call(models_, &v1::ModelService::Stub::ExportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (!status.ok()) return files;
    const auto done = Wait(operation);
    v1::ExportModelResponse exported;
    EXPECT_TRUE(done.has_response() && done.response().UnpackTo(&exported)) << done.error().message();
    v1::DownloadArtifactRequest download;
    download.set_artifact_id(exported.artifact_id());
    grpc::ClientContext context;
    auto reader = models_->DownloadArtifact(&context, download);
    std::string name;
    base::Sha256 digest;
    bool finished = false;
    for (v1::DownloadArtifactResponse message; reader->Read(&message);) {
      if (message.has_file()) name = message.file().path();
      if (message.has_chunk()) {
        files[name] += message.chunk();
        digest.Update(message.chunk());
      }
      if (message.has_finish()) {
        finished = true;
        EXPECT_EQ(message.finish().sha256(), digest.HexDigest());
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_TRUE(finished);
    EXPECT_EQ(files.size(), static_cast<std::size_t>(exported.files_size()));
    for (const auto& file : exported.files()) EXPECT_EQ(base::Sha256Hex(files[file.path()]), file.sha256()) << file.path();
    return files;
  }
  v1::Model Get(const std::string& name) {
    v1::GetModelRequest request;
    request.set_name(name);
    v1::Model model;
    grpc::ClientContext context;
    const auto status = models_->GetModel(&context, request, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return model;
  }
  longrunning::Operation Convert(const std::string& from, const std::string& name, v1::ModelFormat format) {
    v1::ConvertModelRequest request;
    request.set_model(from);
    request.set_name(name);
    request.set_target(format);
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ConvertModel(&context, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? Wait(operation) : operation;
  }
  grpc::Status Verify(const std::string& name, v1::VerifyModelResponse* response) {
    v1::VerifyModelRequest request;
    request.set_name(name);
    return Call(models_, &v1::ModelService::Stub::VerifyModel, request, response);
  }
};

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
  EXPECT_EQ(FieldOf(Upload(files, &response, [](v1::UploadModelRequest& m) {
              if (m.has_header()) m.mutable_header()->set_size_bytes(-1);
              return true;
            })),
            "header.size_bytes");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kFile))), "chunk");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kChunk))), "file.size_bytes");
  EXPECT_EQ(FieldOf(Upload(files, &response, without(v1::UploadModelRequest::kFinish))), "message");
  EXPECT_EQ(FieldOf(Upload(files, &response, [](v1::UploadModelRequest& m) {
              if (m.has_finish()) m.mutable_finish()->set_sha256(std::string(64, '0'));
              return true;
            })),
            "finish.sha256");
  EXPECT_EQ(FieldOf(Upload(files, &response, [](v1::UploadModelRequest& m) {
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
  EXPECT_EQ(refused.error().code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION)) << refused.error().message();
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

// T7 (docs/faults.md): a conversion does not make the tokens of its evaluation set again, in memory.
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
  // The rows are not read again: others are put in their place.
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
    EXPECT_EQ(refused([&](auto& r) { r.mutable_tolerance()->set_min_top1_agreement(share); }), "tolerance.min_top1_agreement");
  }
  for (const double delta : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(refused([&](auto& r) { r.mutable_tolerance()->set_max_eval_loss_delta(delta); }), "tolerance.max_eval_loss_delta");
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

TEST_F(ModelServiceTest, ChangedScaleIsDetected) {
  Import("base");
  ASSERT_TRUE(Convert("base", "small", v1::MODEL_FORMAT_INT8).has_response());
  // A byte at the end of the file belongs to some tensor: it is enough to change that.
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
    for (const char* name : {model::kAdapterConfigFile, model::kAdapterWeightsFile}) files[name] = ReadFile(path + "/" + name);
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
  // The error of an import of the adapter on `base_model`, which leaves nothing.
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
  // On the nf4 model, and on the bf16 model, which is quantized to the same nf4 weights.
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
  EXPECT_EQ(FieldOf(StartImport(request, &operation)), "source_name");
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
  EXPECT_THAT(error.message(), HasSubstr(Get("four").digest()));
}

TEST_F(AdapterImportTest, UnsupportedOrTruncatedAdapterIsRefusedByName) {
  base::Json config = model::ToPeftConfig(config_);
  config["use_dora"] = true;
  auto error = Refused(AdapterFiles(config), "four");
  EXPECT_EQ(error.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(ReasonOf(error), "MODEL_FORMAT");
  EXPECT_THAT(error.message(), HasSubstr("use_dora"));
  Files files = AdapterFiles(model::ToPeftConfig(config_));
  files[model::kAdapterWeightsFile].resize(files[model::kAdapterWeightsFile].size() - 8);
  error = Refused(files, "four");
  EXPECT_EQ(ReasonOf(error), "MODEL_FORMAT");
  EXPECT_THAT(error.message(), HasSubstr(model::kAdapterWeightsFile));
  error = Refused(AdapterFiles(model::ToPeftConfig(config_)), "");
  EXPECT_THAT(error.message(), HasSubstr("base_model"));
}

TEST_F(AdapterImportTest, BaseThatCannotCarryAnAdapterIsRefusedAtOnce) {
  ASSERT_TRUE(Convert("base", "eight", v1::MODEL_FORMAT_INT8).has_response());
  v1::UploadModelResponse upload;
  ASSERT_TRUE(Upload(AdapterFiles(model::ToPeftConfig(config_)), &upload).ok());
  v1::ImportModelRequest request;
  request.set_upload_id(upload.upload_id());
  request.set_name("new");
  request.set_base_model("eight");
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

TEST_F(ModelServiceTest, ALoadedModelCannotBeDeleted) {
  Import("m");
  v1::LoadModelRequest load;
  load.set_name("m");
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::LoadModel, load, &loaded).ok());
  EXPECT_TRUE(loaded.model().loaded());
  ASSERT_EQ(loaded.residents().models_size(), 1);
  EXPECT_GT(loaded.residents().weights_bytes(), 0);
  EXPECT_GT(loaded.residents().kv_bytes(), 0);
  v1::DeleteModelRequest remove;
  remove.set_name("m");
  v1::DeleteModelResponse removed;
  grpc::ClientContext context2;
  EXPECT_EQ(ReasonOf(models_->DeleteModel(&context2, remove, &removed)), "MODEL_IN_USE");
  v1::UnloadModelRequest unload;
  unload.set_name("m");
  v1::UnloadModelResponse unloaded;
  grpc::ClientContext context3;
  ASSERT_TRUE(models_->UnloadModel(&context3, unload, &unloaded).ok());
  EXPECT_EQ(unloaded.residents().models_size(), 0);
  grpc::ClientContext context4;
  EXPECT_EQ(ReasonOf(models_->UnloadModel(&context4, unload, &unloaded)), "MODEL_NOT_LOADED");
  grpc::ClientContext context5;
  EXPECT_TRUE(models_->DeleteModel(&context5, remove, &removed).ok());
}

TEST_F(ModelServiceTest, LoadOfALoadedModelIsAnEndedOperation) {
  Import("m");
  v1::LoadModelRequest load;
  load.set_name("m");
  load.set_request_id("first");
  google::longrunning::Operation first, again, other;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::LoadModel, load, &first).ok());
  v1::ModelOperationMetadata metadata;
  ASSERT_TRUE(first.metadata().UnpackTo(&metadata));
  EXPECT_EQ(metadata.model(), "m");
  EXPECT_TRUE(Wait(first).has_response());
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::LoadModel, load, &again).ok());
  EXPECT_EQ(again.name(), first.name());
  load.set_request_id("second");
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::LoadModel, load, &other).ok());
  EXPECT_NE(other.name(), first.name());
  EXPECT_TRUE(other.done()) << "it is loaded: there is nothing to wait for";
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(other.response().UnpackTo(&loaded));
  EXPECT_TRUE(loaded.model().loaded());
  load.set_name("none");
  EXPECT_EQ(ReasonOf(Call(models_, &v1::ModelService::Stub::LoadModel, load, &other)), "IDEMPOTENCY_CONFLICT");
  load.clear_request_id();
  EXPECT_EQ(ReasonOf(Call(models_, &v1::ModelService::Stub::LoadModel, load, &other)), "MODEL") << "at once";
}

TEST_F(ModelServiceTest, MissingDeviceIsRefusedByName) {
  Import("m");
  v1::LoadModelRequest load;
  load.set_name("m");
  load.mutable_device()->set_kind(v1::DEVICE_KIND_CUDA);
  load.mutable_device()->set_ordinal(7);
  v1::LoadModelResponse loaded;
  const auto status = Call(models_, &v1::ModelService::Stub::LoadModel, load, &loaded);
  EXPECT_EQ(FieldOf(status), "device");
  EXPECT_THAT(status.error_message(), HasSubstr("cuda:7"));
}

TEST_F(ModelServiceTest, ListsByPagesInOrderOfName) {
  for (const char* name : {"c", "a", "b"}) Import(name);
  v1::ListModelsRequest request;
  request.set_page_size(2);
  v1::ListModelsResponse page;
  grpc::ClientContext context;
  ASSERT_TRUE(models_->ListModels(&context, request, &page).ok());
  ASSERT_EQ(page.models_size(), 2);
  EXPECT_EQ(page.models(0).name(), "a");
  request.set_page_token(page.next_page_token());
  grpc::ClientContext context2;
  ASSERT_TRUE(models_->ListModels(&context2, request, &page).ok());
  ASSERT_EQ(page.models_size(), 1);
  EXPECT_EQ(page.models(0).name(), "c");
  EXPECT_EQ(page.next_page_token(), "");
  request.set_page_token("x");
  grpc::ClientContext context3;
  EXPECT_EQ(ReasonOf(models_->ListModels(&context3, request, &page)), "PAGE_TOKEN");
}

// A page begins after the last name of the previous page, whatever is deleted meanwhile.
TEST_F(ModelServiceTest, ListDuringDeletionsShowsTheModelsThatStay) {
  Import("stays");
  for (int i = 0; i < 6; ++i) Import("goes" + std::to_string(i));
  std::thread deleting([this] {
    for (int i = 0; i < 6; ++i) {
      v1::DeleteModelRequest request;
      request.set_name("goes" + std::to_string(i));
      v1::DeleteModelResponse response;
      grpc::ClientContext context;
      EXPECT_TRUE(models_->DeleteModel(&context, request, &response).ok());
    }
  });
  v1::ListModelsResponse page;
  for (int i = 0; i < 1000 && (i == 0 || page.models_size() > 1); ++i) {
    grpc::ClientContext context;
    const auto status = models_->ListModels(&context, {}, &page);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(page.models(page.models_size() - 1).name(), "stays");
  }
  deleting.join();
}

TEST_F(ModelServiceTest, ADeletionBetweenTwoPagesHidesNothing) {
  for (const char* name : {"a", "b", "c", "d"}) Import(name);
  v1::ListModelsRequest request;
  request.set_page_size(2);
  v1::ListModelsResponse page;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ListModels, request, &page).ok());
  request.set_page_token(page.next_page_token());
  for (const char* gone : {"a", "b"}) {  // also the last one shown
    v1::DeleteModelRequest remove;
    remove.set_name(gone);
    v1::DeleteModelResponse removed;
    ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed).ok());
    v1::ListModelsResponse next;
    ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ListModels, request, &next).ok());
    ASSERT_EQ(next.models_size(), 2) << gone;
    EXPECT_EQ(next.models(0).name(), "c");
    EXPECT_EQ(next.models(1).name(), "d");
    EXPECT_EQ(next.next_page_token(), "");
  }
  for (const char* garbage : {"2", "after", "b", "\x01"}) {
    request.set_page_token(garbage);
    EXPECT_EQ(ReasonOf(Call(models_, &v1::ModelService::Stub::ListModels, request, &page)), "PAGE_TOKEN") << garbage;
  }
}

TEST_F(ModelServiceTest, EndedOperationIsAnsweredAfterARestart) {
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("m");
  longrunning::Operation operation;
  ASSERT_TRUE(StartImport(request, &operation).ok());
  Wait(operation);
  app_.reset();
  StartApp();
  longrunning::GetOperationRequest get;
  get.set_name(operation.name());
  longrunning::Operation after;
  grpc::ClientContext context;
  ASSERT_TRUE(operations_->GetOperation(&context, get, &after).ok());
  EXPECT_TRUE(after.done());
  EXPECT_TRUE(after.has_response());
  get.set_name("operations/none");
  grpc::ClientContext context2;
  EXPECT_EQ(ReasonOf(operations_->GetOperation(&context2, get, &after)), "OPERATION");
}

// A call whose answer the restart lost does nothing twice: its name is not found taken, and no second model is made.
TEST_F(ModelServiceTest, ARequestIdIsKnownAfterARestart) {
  Import("base");
  v1::ImportModelRequest imported;
  imported.set_server_path("hf_tied_bf16");
  imported.set_name("m");
  imported.set_request_id("import");
  v1::ConvertModelRequest convert;
  convert.set_model("base");
  convert.set_name("small");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  convert.set_request_id("convert");
  v1::ExportModelRequest exported;
  exported.set_model("base");
  exported.set_format(v1::EXPORT_FORMAT_HF);
  exported.set_request_id("export");
  using Stub = v1::ModelService::Stub;
  const auto begin = [&](longrunning::Operation (&operations)[3]) {
    const grpc::Status statuses[] = {Call(models_, &Stub::ImportModel, imported, &operations[0]),
                                     Call(models_, &Stub::ConvertModel, convert, &operations[1]),
                                     Call(models_, &Stub::ExportModel, exported, &operations[2])};
    for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
  };
  longrunning::Operation first[3], again[3];
  begin(first);
  for (const auto& operation : first) EXPECT_TRUE(Wait(operation).has_response()) << operation.name();
  app_.reset();
  StartApp();
  begin(again);
  for (int i = 0; i < 3; ++i) {
    if (i == 2) continue;
    EXPECT_EQ(again[i].name(), first[i].name()) << i;
    EXPECT_TRUE(again[i].done() && again[i].has_response()) << i;
  }
  // The restart took the files of the export, so it is made again (docs/faults.md, C9).
  EXPECT_NE(again[2].name(), first[2].name());
  EXPECT_TRUE(Wait(again[2]).has_response());
  longrunning::Operation other;
  imported.set_name("other");
  EXPECT_EQ(ReasonOf(Call(models_, &Stub::ImportModel, imported, &other)), "IDEMPOTENCY_CONFLICT");
  convert.set_target(v1::MODEL_FORMAT_NF4);
  EXPECT_EQ(ReasonOf(Call(models_, &Stub::ConvertModel, convert, &other)), "IDEMPOTENCY_CONFLICT");
  exported.set_model("m");
  EXPECT_EQ(ReasonOf(Call(models_, &Stub::ExportModel, exported, &other)), "IDEMPOTENCY_CONFLICT");
  exported.set_model("base");
  exported.set_request_id("import");  // used by another method
  EXPECT_EQ(ReasonOf(Call(models_, &Stub::ExportModel, exported, &other)), "IDEMPOTENCY_CONFLICT");
  longrunning::ListOperationsResponse all;
  ASSERT_TRUE(Call(operations_, &longrunning::Operations::Stub::ListOperations, longrunning::ListOperationsRequest(), &all).ok());
  EXPECT_EQ(all.operations_size(), 5) << "the import of the base, these three, and the second export";
}

}  // namespace
}  // namespace nibble
